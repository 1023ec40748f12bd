"""What was measured of each kind of GPU before: where the learning of capacities begins, and what
`twolane plan` and the simulator compute with. `benchmarks.engine.priors` writes the files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from twolane.deploy.controller.capacity import StepCost


class UnknownGpuError(ValueError):
    """Nothing was measured on that GPU. The message names those that were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One worker on one GPU, for one model.

    `gap_jitter_s`: the 99th percentile of a request's own gaps, beyond the median step.
    `first_token_s`: time to first token on an idle cluster, beyond the prompt's own step.
    `handover_s`: from the prompt's end to the row's first step in the decode worker.
    `rows`: most rows of a decode step. `step_tokens`: most tokens of a step. `kv_tokens`: room in
    the page pool. `start_s`: until a new worker is ready, its kernels cached. `flip_s`: until a
    flipped worker serves its new role.
    """

    gpu: str
    model: str
    prefill: StepCost
    decode: StepCost
    gap_jitter_s: float
    first_token_s: float
    handover_s: float
    rows: int
    step_tokens: int
    kv_tokens: int
    start_s: float
    flip_s: float
    sources: tuple[str, ...]

    def step_s(self, tokens: int, squares: float, rows: int, context: float) -> float:
        """Of a step that computes so many tokens of prompts (`squares` as in `StepCost`), and the
        next token of each of `rows` with that much context in all."""
        step_s = self.decode.step_s(rows, context) if rows else 0.0
        if tokens:
            prompts_s = self.prefill.step_s(tokens + rows, squares)
            step_s = max(step_s, prompts_s + self.decode.more_s * context)
        return step_s


def known_gpus() -> list[str]:
    folder = resources.files(__package__) / "priors"
    return sorted(
        p.name.removesuffix(".json") for p in folder.iterdir() if p.name.endswith(".json")
    )


def hardware(gpu: str) -> Hardware:
    """Raises `UnknownGpuError`."""
    if gpu not in known_gpus():
        raise UnknownGpuError(f"{gpu!r} was not measured; there is {', '.join(known_gpus())}")
    return _parse((resources.files(__package__) / "priors" / f"{gpu}.json").read_text("utf-8"))


def read_hardware(path: Path) -> Hardware:
    """From a file like those that are shipped. Raises OSError or ValueError."""
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} has not the figures of a worker: {error}") from error


def _parse(text: str) -> Hardware:
    told = json.loads(text)
    prefill, decode = (StepCost(**told.pop(name)) for name in ("prefill", "decode"))
    sources = tuple(told.pop("sources"))
    return Hardware(prefill=prefill, decode=decode, sources=sources, **told)
