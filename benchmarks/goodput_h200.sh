#!/bin/sh
# What two GPUs serve within an SLO, split and colocated, beside vLLM's figures. A step is over in ten
# minutes; one that was cut short goes on where it was when it is run again.
# RATES="--rate 26" measures those and searches no others, ROUNDS=1 each but once (else twice),
# LIMIT_S=100 for so long; WORKLOADS="128x512 azure-code" those of `lengths` alone, COLD=5 so many starts.
#
#   benchmarks/goodput_h200.sh starts|trace|idle|split|http|fp8_kv|http_fp8_kv|colocated|lengths \
#       [FOLDER, else build/goodput]
#
# Expected on two H200s, from measured steps (1 x 1,024 prefilled in 23 ms, 64 / 128 / 256 rows of
# 1,024 decoded in 6 / 9 / 15 ms) and queueing (M/D/1), before any run:
#
#   starts      none of 20 fails; ready after 10 s with an empty kernel cache, 6 s with a full one
#   trace       at 18: hops from applied to received 2 to 4 ms in all, most of it link and writing;
#               2 % of steps late by 3 ms, writing and shipping the worst; no pause of a collector
#   idle        first token split / colocated 1.01 to 1.04; first gap at most a step and 1 ms more
#               (measured: 1.02, and a step and 1.7 ms)
#   split       300/15: 25 to 26 a second, 300/20: 29 to 30, both bound by decode (107 rows take 8.9 ms a
#               step, and their number varies); 500/30: 34, bound by prefill (0.9 busy);
#               at 18: TTFT p50 35 ms, gap p99 9 to 10 ms
#   http        as split: each connection is written to by itself, 0.2 ms later in all
#   fp8_kv      300/15: 29 to 30, as attention reads half the bytes; http_fp8_kv: the same
#   colocated   300/15: 4 to 8, as a prefill amid decode is a gap of 29 ms unless chunks are small;
#               500/30: 14 to 24
#   lengths     at 500/100 colocated ahead by up to two everywhere, as both cards do what there is most of;
#               at 500/20 split where prompts are long, as a chunk of 2,048 tokens is a gap of 50 ms:
#               128x512: colocated holds 64 at 500/20, split 32 (the prefill card idles);
#               4096x64: split holds 6 at 500/20, colocated neither; colocated 12 at 500/100, split 6;
#               azure-code: as 4096x64, at 8 and 16; azure-conv: split holds 12 at 500/20, colocated
#               neither, and both 12 at 500/100, colocated 24
#               (measured: azure-conv: split 24 at both; 4096x64: split 6 in one round of two; azure-code: split 16
#               in one; 128x512: colocated 64 at 500/20 in one; docs/planning.md has the shares)
step=${1:?starts, trace, idle, split, http, fp8_kv, http_fp8_kv, colocated or lengths}
cd "$(dirname "$0")/.." || exit 2
out=${2:-build/goodput}
model=build/shape_8b
mkdir -p "$model" build/goodput "$out" || exit 2
export PYTHONUNBUFFERED=1
python3 -c "
import json, pathlib
from benchmarks.engine.points import LLAMA_8B
pathlib.Path('$model/config.json').write_text(json.dumps(LLAMA_8B.config()))" || exit 2
goodput() {
    name=$1
    shift
    resume=
    test -e "build/goodput/$name.json" && resume=--resume
    timeout -k 10 590 python3 -m benchmarks.goodput.measure --set model="$model" --name "$name" $resume \
        --contenders "$contenders" --log-dir build/goodput \
        --folder build/goodput ${COMMIT:+--commit "$COMMIT"} "$@" || exit
    test "$out" = build/goodput || cp build/goodput/"$name".json build/goodput/"$name".png "$out"
}
contenders=benchmarks/contenders/two_h200.toml
slos="--slo 300/15 --slo 300/20 --slo 500/30"
case $step in
starts)
    python3 -m benchmarks.cluster.starts --set model="$model" --name starts_two_h200 --folder "$out" \
        --contenders benchmarks/contenders/two_h200.toml --only split --cold "${COLD:-20}" --warm 5 \
        --time-limit-s 540 ${COMMIT:+--commit "$COMMIT"}
    ;;
trace)
    # shellcheck disable=SC2086  # several words
    python3 -m benchmarks.gaps.trace --set model="$model" --name gap_trace_h200_sdk --folder "$out" \
        --contenders benchmarks/contenders/two_h200.toml --only split \
        ${RATES:---rate 18 --rate 26 --rate 30 --rate 34} --requests 500 ${COMMIT:+--commit "$COMMIT"}
    ;;
idle)
    python3 -m benchmarks.cluster.idle --set model="$model" --name idle_h200_grpc --folder "$out" \
        --contenders benchmarks/contenders/two_h200_idle.toml --length 1024x16 --length 4096x16 \
        --requests 200 --log-dir build/goodput ${COMMIT:+--commit "$COMMIT"}
    ;;
split | http | fp8_kv | http_fp8_kv | colocated)
    # All in one result: each step goes on with the file of the one before.
    case $step in
    split) name=split rates="--rate 18 --rate 24 --rate 27 --rate 30 --rate 34" ;;
    http) name=split_http rates="--rate 24 --rate 27 --rate 30" ;;
    fp8_kv) name=split_fp8_kv rates="--rate 27 --rate 30 --rate 34" ;;
    http_fp8_kv) name=split_http_fp8_kv rates="--rate 27 --rate 30 --rate 34" ;;
    colocated) name=colocated rates="--rate 4 --rate 8 --rate 14 --rate 18" ;;
    esac
    search="--tolerance 0.12"
    test -z "${RATES-}" || search="--tolerance 1 --repeats 1 --highest 0 --lowest 99"  # no others
    # shellcheck disable=SC2086  # several words each
    goodput goodput_h200 --only "$name" $slos ${RATES:-$rates} --requests 200 --window-s 12 --warm-up-s 8 \
        --cool-down-s 6 --rounds "${ROUNDS:-2}" $search --reference vllm_two_h200 \
        --time-limit-s "${LIMIT_S:-560}"
    ;;
lengths)
    for workload in ${WORKLOADS:-128x512 4096x64 azure-code azure-conv}; do
        case $workload in
        128x512) rates="--rate 32 --rate 64" ;;
        4096x64) rates="--rate 6 --rate 12" ;;
        azure-code) rates="--rate 8 --rate 16" ;;
        azure-conv) rates="--rate 12 --rate 24" ;;
        *) exit 2 ;;
        esac
        # shellcheck disable=SC2086  # several words
        goodput "goodput_h200_$workload" --workload "$workload" --only split --only colocated \
            --slo 500/20 --slo 500/100 ${RATES:-$rates} --tolerance 1 --repeats 1 --highest 0 --lowest 99 \
            --requests 80 --window-s 10 --warm-up-s 6 --cool-down-s 4 --rounds "${ROUNDS:-2}" \
            --time-limit-s "${LIMIT_S:-270}"
    done
    ;;
*) exit 2 ;;
esac
