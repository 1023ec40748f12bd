#!/bin/sh
# What one GPU says of a commit, in about nine minutes: do its tests pass, how soon is a cluster or an
# engine ready, how soon does a flipped worker serve, and how long are the engine's steps. Each result
# is saved as soon as it is there.
#
#   benchmarks/one_h200.sh [FOLDER, else benchmarks/results]      COMMIT=... outside a checkout of git
#
# Usual on an H200 beside 16 cores:
#
#   tests     none fails, 120 to 150 s
#   starts    8.6 to 11.7 s with an empty kernel cache, 4.8 to 6.1 with a full one
#   engine    ready after 8.3 to 9.6 s cold, 4.1 to 4.9 warm; decode steps within 2 % of the saved ones
cd "$(dirname "$0")/.." || exit 2
out=${1:-benchmarks/results}
model=build/shape_8b
mkdir -p "$model" build/starts "$out" || exit 2
export PYTHONUNBUFFERED=1
python3 -c "
import json, pathlib
from benchmarks.engine.points import LLAMA_8B
pathlib.Path('$model/config.json').write_text(json.dumps(LLAMA_8B.config()))" || exit 2
timeout 300 python3 -m benchmarks.gpu_tests --folder "$out" ${COMMIT:+--commit "$COMMIT"}
timeout 110 python3 -m benchmarks.cluster.starts --contenders benchmarks/contenders/one_h200.toml \
    --set model="$model" --name starts_one_h200 --folder "$out" --cold 3 --warm 4 \
    --log-dir build/starts --time-limit-s 80 ${COMMIT:+--commit "$COMMIT"}
timeout 115 python3 -m benchmarks.scaling.flip --model "$model" --set device=cuda --set share_gpus \
    --set load_format=random --set pages=1500 --name flip_one_h200 --folder "$out" \
    ${COMMIT:+--commit "$COMMIT"}
decode=decode:1x128,decode:1x4096,decode:8x1024,decode:32x1024,decode:64x1024,decode:80x1024
decode=$decode,decode:96x1024,decode:128x1024,decode:160x1024,decode:192x1024,decode:256x1024
decode=$decode,decode:64x4096
prefill=prefill:1x512,prefill:1x2048,prefill:1x8192,prefill:16x2048,prefill:32x4096
timeout 170 python3 -m benchmarks.engine.steps --mix --startup --out "$out" \
    --points "$decode,$prefill" ${COMMIT:+--commit "$COMMIT"}
