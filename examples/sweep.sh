#!/bin/sh
# Twenty training runs share one GPU: RUNS=20 sh sweep.sh out
# Each is guaranteed 2 GiB and may use 4 GiB. As many run at once as fit; `--wait` lets the others wait in a queue. A run
# that was stopped to give borrowed memory back ends with status 75, and goes on later from its checkpoint.
here=$(dirname "$0")
out=${1:?a directory for the results}

run() {
    while :; do
        gpushare run --name "run-$1" --request 2Gi --limit 4Gi --wait -- \
            python "$here/training.py" "$out/run-$1.json" --steps "${STEPS:-200}" --gib 1.5 --rate "0.0$1"
        status=$?
        [ "$status" -eq 75 ] || return "$status"
    done
}

number=0
runs=
while [ "$number" -lt "${RUNS:-20}" ]; do
    number=$((number + 1))
    run "$number" &
    runs="$runs $!"
done
failed=0
for one in $runs; do
    wait "$one" || failed=$((failed + 1))
done
[ "$failed" -eq 0 ] || { echo "$failed of $number runs have failed" >&2; exit 1; }
