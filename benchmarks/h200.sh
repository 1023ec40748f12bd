# Sourced by the scripts that measure H200s, in the repository's root and with `out` set: the folder of results.
#
#   $model                                 a model of Llama-3.1-8B's shape: only a config.json, weights are random
#   measure SECONDS BENCHMARK OPTION …     runs benchmarks.BENCHMARK for so long at most; its result goes to $out
#
# shellcheck shell=sh disable=SC2154  # `out` is the script's
model=build/shape_8b
mkdir -p "$model" "$out" || exit 2
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python3 -c "
import json, pathlib
from benchmarks.engine.points import LLAMA_8B
pathlib.Path('$model/config.json').write_text(json.dumps(LLAMA_8B.config()))" || exit 2
measure() {
    limit_s=$1 benchmark=$2
    shift 2
    timeout -k 10 "$limit_s" python3 -m "benchmarks.$benchmark" "$@" --folder "$out" ${COMMIT:+--commit "$COMMIT"}
}
