#!/bin/sh
# Checks and times tensor parallelism on this machine's GPUs, in about 5 minutes:
#
#   benchmarks/ranks.sh 2 [FOLDER]      or 4; results go to FOLDER (benchmarks/results)
#
# With the Python that is active. NVLink multicast stays off: nothing here needs it. Goes on after a failure; says at the
# end which parts failed.
ranks=${1:?how many GPUs: 2 or 4}
cd "$(dirname "$0")/.." || exit 2
out=${2:-benchmarks/results}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONUNBUFFERED=1
failed=
part() {
    name=$1 limit=$2
    shift 2
    echo "== $name"
    begun=$(date +%s)
    timeout -k 5 "$limit" "$@" || failed="$failed $name"
    echo "== $name took $(($(date +%s) - begun)) s"
}
part sums 60 python3 -m benchmarks.kernels.all_reduce --ranks "$ranks" --folder "$out"
part decode 120 python3 -m benchmarks.engine.steps --shape 70b --tp "$ranks" --folder "$out"
part decode_by_nccl 90 python3 -m benchmarks.engine.steps --shape 70b --tp "$ranks" --nccl-sums \
    --points decode:1x1024 --folder "$out"
test "$ranks" = 2 && other=four_ranks || other=two_ranks
part tests 150 python3 -m pytest -q -c tests/gpu/pytest.ini --rootdir . \
    tests/gpu/test_ranks.py -k "not $other" --durations 5
echo "failed:${failed:- nothing}"
test -z "$failed"
