#!/usr/bin/env bash
# The figures of suite text8 in docs/benchmarks.md. PLAIT_DATA names the folder of the data sets. What is in the files
# of results already is not run again. Hours on 2 cores from nothing, most of them for the fits.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
plait="${PLAIT:-.venv/bin/plait}"
out=benchmarks/results/text8.json
fixed="average,task_arithmetic,ties,magmax,opcm,model_stock"
more="covariance,regmean,fisher,mdm_oc,mdm_oc granularity=layer,mdm_oc granularity=tensor"
fit="fit.evaluations=60 fit.samples=32"
fitted=""
for search in gradient cmaes; do
    for method in mdm_oc task_arithmetic; do
        for granularity in model layer tensor; do
            fitted+="$method fit=$search granularity=$granularity $fit,"
        done
    done
done
fitted+="ties fit=gradient $fit,covariance fit=gradient $fit"

# streams: every model on the way is measured
"$plait" bench run text8 --methods "$fixed" --orders "${STREAMS:-42}" --out "$out"
# the model of all tasks alone
"$plait" bench run text8 --methods "$fixed,$more" --orders 42-46 --last --out "$out"
for order in ${ORDERS:-42 43 44 45 46}; do
    "$plait" bench run text8 --methods "$fitted" --orders "$order" --last --out "$out"
done
# removal of each task
"$plait" bench removal text8 --orders 42 --examples 100 --out benchmarks/results/text8-removal.json
