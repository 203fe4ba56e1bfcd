#!/bin/sh
# A day with a GPU, from this folder: run [1|2] [OPTIONS]. docs/gpu-day.md says what it does and what it never does.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit 1
for python in "${GPUDAY_PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case $tag in cp311 | cp312 | cp313 | cp314) ;; *) continue ;; esac
    case ${1:-} in 1 | 2) part=$1; shift; set -- --part "$part" "$@" ;; esac
    export GPUDAY_PYTHONPATH="${PYTHONPATH:-}" GPUDAY_PACKAGES="$here/packages/any:$here/packages/$tag"
    export GPUDAY_BINARIES="$here/bin" PYTHONDONTWRITEBYTECODE=1
    export PYTHONPATH="$here:$here/daemon:$here/tests:$GPUDAY_PACKAGES"
    exec "$python" -m gpuday "$@"
done
echo "gpu-day: needs Python 3.11 to 3.14; GPUDAY_PYTHON names one" >&2
exit 2
