#!/usr/bin/env bash
# The class-incremental figures in docs/benchmarks.md: clinc150 and banking77 with MiniLM, 100 classes of Tiny-ImageNet,
# CIFAR-10 and Fashion-MNIST with EfficientNet-Lite0. PLAIT_DATA names the folder of the data sets. What is in the files
# of results already is not run again. Training and merging add up to 5.4 processor hours on the machine of the
# results, choosing options and measuring come on top. Two files are made side by side, one thread each.
# CACHE: the folder of work, as for `plait bench --cache`.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
plait="${PLAIT:-.venv/bin/plait}"
cache="${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/plait/bench}"
trm="steps=10 batch=32 rate=0.05 samples=256"
every="sequential,ewc samples=64,gem memory=64 batch=8,ema,average,task_arithmetic,ties,magmax,model_stock,opcm"
every="$every,ode_m samples=128,trm $trm,joint"
parts="trm res=0 $trm,trm pre=0 $trm,trm beta_most=0 $trm"
few="sequential,ema,average,ties,opcm,trm $trm,joint"
cil() { # suite, file, splits, methods, and what else
    local suite="$1" file="$2" splits="$3" methods="$4"
    shift 4
    "$plait" bench cil "$suite" --splits "$splits" --methods "$methods" --orders 42-44 --budget 3 --each 10 --epochs 3 \
        --workers 1 --cache "$cache/$suite" --out "benchmarks/results/$file.json" "$@"
}
# For each suite a rate at which little is forgotten, and one at which much is.
images() {
    cil cil-images cil-images-gentle tiny_imagenet100_32 "$every" --rate 1e-4 --examples 500 --orders 42
    cil cil-images cil-images tiny_imagenet100_32 "$every" --rate 5e-4 --examples 500
    cil cil-images cil-images tiny_imagenet100_32/10 "$parts" --rate 5e-4 --examples 500
    cil cil-images cil-images cifar10,fashion_mnist "$every" --rate 5e-4 --examples 500
}
texts() {
    cil cil-text cil-text-gentle clinc150/5 "$few" --rate 1e-4 --examples 450
    cil cil-text cil-text clinc150/5 "$every" --rate 5e-4 --examples 450 --each 5
    cil cil-text cil-text clinc150/5 "$parts" --rate 5e-4 --examples 450 --each 5 --orders 42
    cil cil-text cil-text clinc150/10,banking77/7 "$every" --rate 5e-4 --examples 450 --each 5 --orders 42,43
    cil cil-text cil-text clinc150/15,banking77/11 "$every" --rate 5e-4 --examples 450 --each 5 --orders 42
}
case "${1:-all}" in
images | texts) "$1" ;;
all)
    images &
    texts
    wait $!
    ;;
*) echo "expected images, texts or all, found $1" >&2 && exit 2 ;;
esac
