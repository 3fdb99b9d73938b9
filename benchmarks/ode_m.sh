#!/usr/bin/env bash
# The figures of ODE-M in docs/benchmarks.md, beside those of benchmarks/text8.sh, whose experts it takes. PLAIT_DATA
# names the folder of the data sets. What is in the files of results already is not run again. About an hour and a half
# on 2 cores. CACHE: the folder of experts, as for `plait bench --cache`.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
plait="${PLAIT:-.venv/bin/plait}"
cache="${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/plait/bench}"
out=benchmarks/results/text8.json
last() { # orders, methods
    "$plait" bench run text8 --methods "$2" --orders "$1" --last --out "$out" --cache "$cache"
}
few="samples=128"
more="samples=256"
refined="batch=32 $few"

# the paper's path, and one that leads to what covariance makes of all members; with every model on the way
"$plait" bench run text8 --methods "covariance,ode_m $more,ode_m calibration=new $more,ode_m target=merged $few" \
    --orders 42 --streams 2 --out "$out" --cache "$cache"
# the authors' program and the controls; other orders
last 42-44 "ode_m $more,ode_m calibration=new $more,ode_m variant=control_refine $refined,ode_m variant=control_adamw $refined"
last 42-43 "ode_m variant=released h=0.02 $refined,ode_m target=merged $few"
# what single options do
last 42 "ode_m $few,ode_m h=0.2 $few,ode_m h=0.01 $few,ode_m samples=512,ode_m samples=1024"
last 42 "ode_m granularity=layer $more,ode_m granularity=tensor $more,ode_m budget=0 $more,ode_m target=merged budget=0 $few"
# tasks of unequal weight
"$plait" bench run text8 --weights zipf --last --orders 42-43 --cache "$cache" --out benchmarks/results/text8-zipf.json \
    --methods "average,task_arithmetic,ties,opcm,covariance,covariance scale=1,mdm_oc,ode_m $few,ode_m target=merged $few"
# what the tasks before the last and the last one get along the path to it
"${PYTHON:-.venv/bin/python}" benchmarks/ode_path.py text8 --method "ode_m $few" --orders 42 --examples 200 --cache "$cache" \
    --data "$PLAIT_DATA" --out benchmarks/results/text8-path.json
cp benchmarks/results/text8-path.svg docs/figures/
# when a path is held back at all
"${PYTHON:-.venv/bin/python}" benchmarks/ode_gamma.py --data "$PLAIT_DATA" --cache "$cache/gamma"
