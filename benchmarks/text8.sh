#!/usr/bin/env bash
# The figures of suite text8 in docs/benchmarks.md. PLAIT_DATA names the folder of the data sets. What is in the files
# of results already is not run again. Most of the time goes to the fits.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
plait="${PLAIT:-.venv/bin/plait}"
out=benchmarks/results/text8.json
fit="fit.evaluations=60 fit.samples=32"
fits() { # method: both searches at every granularity
    for search in gradient cmaes; do
        for granularity in model layer tensor; do
            printf "%s," "$1 fit=$search granularity=$granularity $fit"
        done
    done
}
# task_arithmetic, ties and covariance do not depend on the order
free="$(fits task_arithmetic)ties fit=gradient $fit,covariance fit=gradient $fit"
# what made-up examples do in the place of the members' own, and the pull towards the first coefficients
layer="mdm_oc fit=gradient granularity=layer $fit"
made="$layer fit.replay=earlier,$layer fit.replay=all,$layer fit.ewc=1,$layer fit.ewc=100"

bash benchmarks/field.sh text8
"$plait" bench run text8 --methods "mdm_oc granularity=tensor" --orders 42-46 --last --out "$out"
"$plait" bench run text8 --methods "$(fits mdm_oc)$free,$made" --orders 42 --last --out "$out"
"$plait" bench run text8 --methods "$(fits mdm_oc | sed 's/,$//')" --orders "${ORDERS:-43,44}" --last --out "$out"
# removal of each task
"$plait" bench removal text8 --orders 42 --examples 100 --out benchmarks/results/text8-removal.json
