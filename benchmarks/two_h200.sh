#!/bin/sh
# Measures two H200s: what they serve within an SLO, split and colocated, beside vLLM's figures. A step takes ten
# minutes at most; one that was cut short continues where it was when it is run again.
#
#   benchmarks/two_h200.sh STEP [FOLDER, else build/goodput]
#
#   step                           measures
#   starts                         cluster after cluster: how soon each is ready
#   trace                          where late tokens were late
#   idle                           one request at a time, split beside colocated; first_gap: at which stages of a
#                                  token's way the first two tokens of an answer are when
#   split, http, fp8_kv,           rates within the SLOs, by the SDK's stream or over HTTP, with FP8 pages on the decode
#     http_fp8_kv, colocated       side or not; all in one result, to which each step adds
#   lengths                        other lengths and Azure's traces, split beside colocated: a result for each workload
#
#   variable                       meaning
#   RATES="--rate 26 --rate 30"    measure these rates, and search no others
#   ROUNDS=1                       so many rounds, else 2
#   LIMIT_S=100                    begin no run after so many seconds
#   WORKLOADS="128x512 azure-code" of `lengths`, only these
#   COLD=5                         of `starts`, so many with an empty kernel cache, else 20
#   COMMIT=…                       of this code, where it is not a checkout of git
#
# Expected before any run, from measured steps (1 x 1,024 prefilled in 23 ms, 64 / 128 / 256 rows of 1,024 decoded in
# 6 / 9 / 15 ms) and queueing (M/D/1), and what was measured then where it was something else:
#
#   starts      none of 20 fails; ready after 10 s with an empty kernel cache, 6 s with a full one
#   trace       at 18/s: hops from applied to received 2 to 4 ms in all, most of it link and writing; 2 % of steps
#               late by 3 ms, writing and shipping the worst; no pause of a collector
#   idle        first token split / colocated 1.01 to 1.04; first gap at most a step and 1 ms more
#               measured: 1.01 and 1.03; a step and 1.4 to 1.7 ms more
#   split       300/15: 25 to 26/s, 300/20: 29 to 30, both bound by decode (107 rows take 8.9 ms a step, and their
#               number varies); 500/30: 34, bound by prefill (0.9 busy); at 18/s: TTFT p50 35 ms, gap p99 9 to 10 ms
#   http        as split: each connection is written to by itself, 0.2 ms later in all
#   fp8_kv      300/15: 29 to 30/s, as attention reads half the bytes; http_fp8_kv: the same
#   colocated   300/15: 4 to 8/s, as a prefill amid decode is a gap of 29 ms unless chunks are small; 500/30: 14 to 24
#   lengths     at 500/100 colocated ahead by up to two everywhere, as both cards do what there is most of; at 500/20
#               split where prompts are long, as a chunk of 2,048 tokens is a gap of 50 ms:
#     128x512     colocated holds 64/s at 500/20, split 32 (the prefill card idles)
#                 measured: colocated 64 at 500/20 in one round of two
#     4096x64     split holds 6/s at 500/20, colocated neither; colocated 12 at 500/100, split 6
#                 measured: split 6 in one round of two
#     azure-code  as 4096x64, at 8 and 16/s; measured: split 16 in one round of two
#     azure-conv  split holds 12/s at 500/20, colocated neither; both 12 at 500/100, colocated 24
#                 measured: split 24 at both
# docs/planning.md has the measured shares.
step=${1:?starts, trace, idle, first_gap, split, http, fp8_kv, http_fp8_kv, colocated or lengths}
cd "$(dirname "$0")/.." || exit 2
out=${2:-build/goodput}
. benchmarks/h200.sh
mkdir -p build/goodput || exit 2

contenders=benchmarks/contenders/two_h200.toml
slos="--slo 300/15 --slo 300/20 --slo 500/30"
only_these_rates="--tolerance 1 --repeats 1 --highest 0 --lowest 99"

# Runs are kept in build/goodput, whatever $out is, and the next call of that name resumes from there.
goodput() {
    name=$1
    shift
    resume=
    test -e "build/goodput/$name.json" && resume=--resume
    (
        out=build/goodput
        measure 590 goodput.measure --set model="$model" --name "$name" $resume \
            --contenders "$contenders" --log-dir build/goodput "$@"
    ) || exit
    test "$out" = build/goodput || cp build/goodput/"$name".json build/goodput/"$name".png "$out"
}

# CONTENDER RATES: those rates and a search between them, unless RATES says which.
at_rates() {
    search="--tolerance 0.12"
    test -z "${RATES-}" || search=$only_these_rates
    # shellcheck disable=SC2086  # several words each
    goodput goodput_h200 --only "$1" $slos ${RATES:-$2} --requests 200 --window-s 12 --warm-up-s 8 \
        --cool-down-s 6 --rounds "${ROUNDS:-2}" $search --reference vllm_two_h200 \
        --time-limit-s "${LIMIT_S:-560}"
}

# WORKLOAD RATES
split_and_colocated() {
    # shellcheck disable=SC2086  # several words each
    goodput "goodput_h200_$1" --workload "$1" --only split --only colocated --slo 500/20 --slo 500/100 \
        ${RATES:-$2} $only_these_rates --requests 80 --window-s 10 --warm-up-s 6 --cool-down-s 4 \
        --rounds "${ROUNDS:-2}" --time-limit-s "${LIMIT_S:-270}"
}

case $step in
starts)
    measure 600 cluster.starts --set model="$model" --name starts_two_h200 --contenders "$contenders" \
        --only split --cold "${COLD:-20}" --warm 5 --time-limit-s 540
    ;;
trace)
    # shellcheck disable=SC2086  # several words
    measure 600 gaps.trace --set model="$model" --name gap_trace_h200_sdk --contenders "$contenders" \
        --only split ${RATES:---rate 18 --rate 26 --rate 30 --rate 34} --requests 500
    ;;
idle)
    measure 600 cluster.idle --set model="$model" --name idle_h200_grpc \
        --contenders benchmarks/contenders/two_h200_idle.toml --length 1024x16 --length 4096x16 \
        --requests 200 --log-dir build/goodput
    ;;
first_gap)
    measure 300 gaps.first_gap --set model="$model" --name first_gap_h200 --only split --only colocated \
        --contenders benchmarks/contenders/two_h200_idle.toml --length 1024x16 --length 4096x16 \
        --requests 60
    ;;
split) at_rates split "--rate 18 --rate 24 --rate 27 --rate 30 --rate 34" ;;
http) at_rates split_http "--rate 24 --rate 27 --rate 30" ;;
fp8_kv) at_rates split_fp8_kv "--rate 27 --rate 30 --rate 34" ;;
http_fp8_kv) at_rates split_http_fp8_kv "--rate 27 --rate 30 --rate 34" ;;
colocated) at_rates colocated "--rate 4 --rate 8 --rate 14 --rate 18" ;;
lengths)
    for workload in ${WORKLOADS:-128x512 4096x64 azure-code azure-conv}; do
        case $workload in
        128x512) split_and_colocated 128x512 "--rate 32 --rate 64" ;;
        4096x64) split_and_colocated 4096x64 "--rate 6 --rate 12" ;;
        azure-code) split_and_colocated azure-code "--rate 8 --rate 16" ;;
        azure-conv) split_and_colocated azure-conv "--rate 12 --rate 24" ;;
        *) exit 2 ;;
        esac
    done
    ;;
*) exit 2 ;;
esac
