"""What the autoscaler and `twolane plan` take for granted of a GPU, fitted to saved results.

    python -m benchmarks.engine.priors        writes deploy/controller/priors/h200.json

Step costs are fitted, with relative errors, to `engine.json` and to the median gaps of the runs of
`goodput_h200.json`, whose rows follow from Little's law. Jitter is how much the clients' gaps vary
in those runs beyond the engine's steps, which `gap_trace_h200.json` tells; variances add up.
Hand-over is read off `goodput_h200.json`, the first token off `idle_h200.json`, the start off
`starts_h200.json`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.results import RESULTS

FILE = Path(__file__).parents[2] / "deploy" / "controller" / "priors" / "h200.json"
_DECODE_ROWS, _STEP_TOKENS = 256, 2048  # what workers on a GPU start with
_KV_SHARE, _CARD_GIB, _WEIGHTS_GIB, _KIB_A_TOKEN = 0.9, 139, 15, 128
_FLIP_S = 1.0  # announced once a second; kernels of both roles are ready before


def fit(
    points: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Costs of prefill and decode steps in seconds, from points `<kind>:<prompts or rows>x<tokens>`
    and from runs with one decode worker."""
    found = {}
    for kind in ("prefill", "decode"):
        rows: list[tuple[float, float, float, float]] = []
        for point in points:
            if match := re.fullmatch(rf"{kind}:(\d+)x(\d+)", point["name"]):
                n, length = int(match[1]), int(match[2])
                more = n * length * length if kind == "prefill" else n * length
                rows.append((1.0, n * length if kind == "prefill" else n, more, point["best_ms"]))
        if kind == "decode":
            rows += [_served(run) for run in runs]
        table = np.array(rows)
        features, time_s = table[:, :3], table[:, 3] / 1e3
        # A fixed cost of prefill comes out below zero: big steps hide it. Then there is none.
        free = [0, 1, 2]
        while True:
            weighted = features[:, free] / time_s[:, None]
            costs, *_ = np.linalg.lstsq(weighted, np.ones(len(rows)), rcond=None)
            if (costs >= 0).all():
                break
            free.remove(free[int(np.argmin(costs))])
        full = dict.fromkeys(range(3), 0.0) | dict(zip(free, costs, strict=True))
        names = ("fixed_s", "each_s", "more_s")
        found[kind] = {name: float(f"{full[i]:.4g}") for i, name in enumerate(names)}
    return found


def _served(run: dict[str, Any]) -> tuple[float, float, float, float]:
    """The usual step of a run: one, rows, their context, milliseconds."""
    prompts, outputs = run["requests"]["prompt_tokens"], run["requests"]["output_tokens"]
    output = sum(outputs) / len(outputs)
    rows = run["rate_per_s"] * output * run["figures"]["tpot_p50_ms"] / 1e3
    context = rows * (sum(prompts) / len(prompts) + output / 2)
    return 1.0, rows, context, run["figures"]["gap_p50_ms"]


def priors(folder: Path = RESULTS) -> dict[str, Any]:
    """The document. Raises OSError where a result is missing."""
    names = ("engine", "goodput_h200", "gap_trace_h200", "idle_h200", "starts_h200")
    saved = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    runs = [run for run in saved["goodput_h200"]["figures"]["runs"] if not run["halted"]]
    costs = fit(saved["engine"]["figures"]["points"], runs)
    (trace,) = (t for name, t in saved["gap_trace_h200"]["figures"].items() if " at " in name)
    engine_ms = trace["hops"]["engine"]["p99_ms"] - trace["hops"]["engine"]["p50_ms"]
    spreads_ms = [trace["gap_p99_ms"] - trace["gap_p50_ms"]]
    spreads_ms += [run["figures"]["gap_p99_ms"] - run["figures"]["gap_p50_ms"] for run in runs]
    jitter_ms = median(math.sqrt(spread**2 - engine_ms**2) for spread in spreads_ms)
    idle = saved["idle_h200"]["figures"]["lengths"]["1024x16"]["split"]["figures"]
    prompt_s = costs["prefill"]["fixed_s"] + 1024 * costs["prefill"]["each_s"]
    prompt_s += 1024**2 * costs["prefill"]["more_s"]
    commits = [f"{name}.json of {saved[name]['commit'][:7]}" for name in names]
    return {
        "gpu": "h200",
        "model": "8B, bf16",
        **costs,
        "gap_jitter_s": round(jitter_ms / 1e3, 5),
        "first_token_s": round(idle["ttft_p50_ms"] / 1e3 - prompt_s, 5),
        "handover_s": round(median(r["figures"]["transfer_p50_ms"] for r in runs) / 1e3, 5),
        "rows": _DECODE_ROWS,
        "step_tokens": _STEP_TOKENS,
        "kv_tokens": int((_CARD_GIB * _KV_SHARE - _WEIGHTS_GIB) * 2**20 / _KIB_A_TOKEN),
        "start_s": saved["starts_h200"]["figures"]["split"]["cold_ready_s"],
        "flip_s": _FLIP_S,
        "sources": commits,
    }


def main() -> None:
    FILE.write_text(json.dumps(priors(), indent=1) + "\n")
    print(FILE.read_text())


if __name__ == "__main__":
    main()
