#!/bin/sh
# Training uses what an inference server leaves idle: sh beside_inference.sh out
# The server is guaranteed 10 GiB, of which it uses 2 GiB until requests come. Training is guaranteed 1 GiB and borrows the
# rest. When the server needs its memory, training saves its work within its grace of 10 s, ends, and waits for room.
here=$(dirname "$0")
out=${1:?a directory for the results}

gpushare run --name server --request 10Gi --limit 10Gi --priority 10 -- \
    python "$here/owner.py" 2 7 --pause "${QUIET:-20}" &

while :; do
    gpushare run --name training --request 1Gi --limit max --grace 10s --wait -- \
        python "$here/training.py" "$out/training.json" --steps "${STEPS:-2000}" --gib "${GIB:-9}"
    status=$?
    [ "$status" -eq 75 ] || break
    GIB=1 # while the server is busy: what training is guaranteed, less its CUDA context
done
wait
exit "$status"
