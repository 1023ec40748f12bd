#!/bin/sh
# What one GPU says of a commit: do its tests pass, how soon is a cluster or an engine ready, what do
# kills cost, how soon does a flipped worker serve, and how long are the engine's steps. A step is
# over in five minutes, `engine` in ten; each result is saved as soon as it is there.
#
#   benchmarks/one_h200.sh tests|starts|kills|flip|engine|all [FOLDER, else benchmarks/results]
#   COMMIT=... outside a checkout of git
#
# Usual on an H200 beside 16 cores:
#
#   tests     none fails, 120 to 200 s
#   starts    8.6 to 16.7 s with an empty kernel cache, 4.8 to 6.7 with a full one
#   kills     no request fails; a worker is back after 6 to 10 s
#   engine    ready after 8.3 to 15.1 s cold, 4.1 to 5.4 warm; decode steps within 2 % of the saved ones
step=${1:?tests, starts, kills, flip, engine or all}
cd "$(dirname "$0")/.." || exit 2
out=${2:-benchmarks/results}
model=build/shape_8b
mkdir -p "$model" build/starts "$out" || exit 2
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python3 -c "
import json, pathlib
from benchmarks.engine.points import LLAMA_8B
pathlib.Path('$model/config.json').write_text(json.dumps(LLAMA_8B.config()))" || exit 2
engine() {
    timeout 250 python3 -m benchmarks.engine.steps "$@" --sustain-s 5 --folder "$out" \
        ${COMMIT:+--commit "$COMMIT"}
}
few=decode:1x128,decode:8x1024,decode:64x1024,prefill:1x512,prefill:1x2048,prefill:1x8192
few=$few,prefill:16x2048,prefill:32x4096
points=decode:1x128,decode:8x1024,decode:32x1024,decode:64x1024,decode:65x1024,decode:80x1024
points=$points,decode:96x1024,decode:128x1024,decode:160x1024,decode:192x1024,decode:256x1024
points=$points,decode:64x4096,prefill:1x512,prefill:1x1024,prefill:1x2048,prefill:1x8192
points=$points,prefill:16x2048,prefill:32x4096
run() {
    case $1 in
    tests)
        timeout 300 python3 -m benchmarks.gpu_tests --folder "$out" ${COMMIT:+--commit "$COMMIT"}
        ;;
    starts)
        timeout 110 python3 -m benchmarks.cluster.starts \
            --contenders benchmarks/contenders/one_h200.toml --set model="$model" \
            --name starts_one_h200 --folder "$out" --cold 3 --warm 4 --log-dir build/starts \
            --time-limit-s 85 ${COMMIT:+--commit "$COMMIT"}
        ;;
    kills)
        timeout 180 python3 -m benchmarks.cluster.kills --topology 2p2d --model "$model" \
            --set share_gpus --set load_format=random --set kv_bytes=8000000000 \
            --set launcher=process --in-flight 16 --together --prompt-tokens 2000 \
            --prompt-tokens 300 --output-tokens 200 --kills 5 --name kills_8b --folder "$out" \
            ${COMMIT:+--commit "$COMMIT"}
        ;;
    flip)
        timeout 115 python3 -m benchmarks.scaling.flip --model "$model" --set device=cuda \
            --set share_gpus --set load_format=random --set pages=1500 --name flip_one_h200 \
            --folder "$out" ${COMMIT:+--commit "$COMMIT"}
        ;;
    engine)
        engine --startup --name engine_bf16 --points "$points"
        engine --exact --points "$points"
        engine --weights fp8 --points "$few"
        engine --weights fp8 --kv-dtype fp8 --points decode:64x1024,decode:256x1024
        timeout 60 python3 -m benchmarks.engine.prompts --folder "$out" ${COMMIT:+--commit "$COMMIT"}
        ;;
    all) for each in tests starts kills flip engine; do run $each; done ;;
    *) exit 2 ;;
    esac
}
run "$step"
