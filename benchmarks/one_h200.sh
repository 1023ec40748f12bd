#!/bin/sh
# Measures a commit on one H200. A step takes five minutes at most, `engine` ten; each result is saved as soon as
# it is there.
#
#   benchmarks/one_h200.sh STEP [FOLDER, else benchmarks/results]
#   COMMIT=… where this is not a checkout of git
#
#   step      measures, and what is usual on an H200 beside 16 cores
#   tests     the tests that need a GPU: none fails, 120 to 220 s
#   starts    when a cluster is ready: after 8.6 to 16.7 s with an empty kernel cache, 4.8 to 6.7 with a full one
#   kills     what killed workers cost: no request fails; a worker is back after 6 to 11 s. kills_long: where answers
#             are long; kills_ray: where Ray runs the workers, and one is back after 11 to 14 s
#   flip      how soon a flipped worker serves in its other role
#   engine    when an engine is ready: after 8.3 to 15.1 s cold, 4.1 to 5.4 warm; and its steps: those of decode
#             within 2 % of the saved ones
#   all       all of these
step=${1:?tests, starts, kills, kills_long, kills_ray, flip, engine or all}
cd "$(dirname "$0")/.." || exit 2
out=${2:-benchmarks/results}
. benchmarks/h200.sh

points=decode:1x128,decode:8x1024,decode:32x1024,decode:64x1024,decode:65x1024,decode:80x1024
points=$points,decode:96x1024,decode:128x1024,decode:160x1024,decode:192x1024,decode:256x1024
points=$points,decode:64x4096,prefill:1x512,prefill:1x1024,prefill:1x2048,prefill:1x8192
points=$points,prefill:16x2048,prefill:32x4096
few_points=decode:1x128,decode:8x1024,decode:64x1024,prefill:1x512,prefill:1x2048,prefill:1x8192
few_points=$few_points,prefill:16x2048,prefill:32x4096

prompts="--prompt-tokens 2000 --prompt-tokens 300"

# NAME LAUNCHER OPTION …
killed() {
    name=$1 launcher=$2
    shift 2
    measure 180 cluster.kills --name "$name" --topology 2p2d --model "$model" --set share_gpus \
        --set load_format=random --set kv_bytes=8000000000 --set launcher="$launcher" \
        --in-flight 16 --together "$@"
}

# shellcheck disable=SC2086  # $prompts are several words
run_step() {
    case $1 in
    tests) measure 300 gpu_tests ;;
    starts)
        measure 110 cluster.starts --name starts_one_h200 \
            --contenders benchmarks/contenders/one_h200.toml --set model="$model" \
            --cold 3 --warm 4 --time-limit-s 85 --log-dir build/starts
        ;;
    kills) killed kills_8b process $prompts --output-tokens 200 --kills 5 ;;
    kills_long) killed kills_8b_long process --prompt-tokens 300 --output-tokens 1200 --kills 1 ;;
    kills_ray) killed kills_8b_ray ray $prompts --output-tokens 200 --kills 1 --requests 16 ;;
    flip)
        measure 115 scaling.flip --name flip_one_h200 --model "$model" --set device=cuda \
            --set share_gpus --set load_format=random --set pages=1500
        ;;
    engine)
        measure 250 engine.steps --sustain-s 5 --points "$points" --startup --name engine_bf16
        measure 250 engine.steps --sustain-s 5 --points "$points" --exact
        measure 250 engine.steps --sustain-s 5 --points "$few_points" --weights fp8
        measure 250 engine.steps --sustain-s 5 --points decode:64x1024,decode:256x1024 \
            --weights fp8 --kv-dtype fp8
        measure 60 engine.prompts
        ;;
    all) for each in tests starts kills kills_long flip engine; do run_step $each; done ;;
    *) exit 2 ;;
    esac
}
run_step "$step"
