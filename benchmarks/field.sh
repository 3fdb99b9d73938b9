#!/usr/bin/env bash
# Every method on one suite, text8 or vision8: the tables of all methods in docs/benchmarks.md. PLAIT_DATA names the
# folder of the data sets. What is in the file of results already is not run again. Models on the way of a stream, and
# with them BWT and the plasticity gap, are measured for the orders in STREAMS, the model of all tasks
# for five orders, or those in ORDERS where data is looked at. CACHE: the folder of experts, as for `plait bench --cache`.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
plait="${PLAIT:-.venv/bin/plait}"
cache="${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/plait/bench}"
suite="${1:?a suite, text8 or vision8}"
few=()
[[ "$suite" != vision8 ]] || few=(--examples 500) # test examples of a task
run() { # methods, orders, and what else
    local methods="$1" orders="$2"
    shift 2
    "$plait" bench run "$suite" --methods "$methods" --orders "$orders" --out "benchmarks/results/$suite-field.json" \
        --cache "$cache" ${few[@]+"${few[@]}"} "$@"
}
free="average,task_arithmetic,ties,model_stock,covariance,iso_c,iso_cts,tsv_m,wudi"
folds="magmax,opcm,nufilt,ties_recursive,mdm_oc granularity=layer,mdm_oc"
data="regmean,fisher,ode_m samples=128,ode_m samples=128 target=merged,trm steps=10 batch=32 rate=0.05 samples=256"
# its 200 steps take ten times as long
slow="dop steps=20"
# the weights of its network are kernels of convolutions
if [[ "$suite" == vision8 ]]; then
    kernels="convolutions=true"
    free="$free,covariance $kernels,iso_c $kernels,iso_cts $kernels,tsv_m $kernels,wudi $kernels"
    folds="$folds,opcm $kernels,nufilt $kernels"
    data="$data,regmean $kernels"
    slow="$slow,dop steps=20 $kernels"
fi
run "$free,$folds" 42-46 --last
run "$free,$folds" "${STREAMS:-42}"
run "$data,$slow" "${ORDERS:-42,43}" --last
run "$data,$slow" "${STREAMS:-42}"
