"""The sampling defaults of a model's authors, from its generation_config.json.

As in vLLM, these are six fields, and `do_sample` does not matter. A request's own values take
precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from twolane.errors import InvalidParameterError
from twolane.params import SamplingParams
from twolane.router.text.model_files import ModelFilesError, read_json
from twolane.v1 import sampling_pb2

FILE = "generation_config.json"
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """`sampling` are fields of `SamplingParams`. `max_tokens` bounds answers whose request sets
    none."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None

    def applied(self, params: SamplingParams, given: sampling_pb2.SamplingParams) -> SamplingParams:
        """`params`, with the model's values for fields that the request's message `given` does not
        set."""
        unset = {k: v for k, v in self.sampling.items() if not given.HasField(k)}
        return replace(params, **unset) if unset else params


NO_DEFAULTS = ModelDefaults()


def read_defaults(directory: Path) -> ModelDefaults:
    """The defaults of a model directory; empty if it has no such file. Raises `ModelFilesError`."""
    facts = read_json(directory / FILE)
    said = {name: facts[name] for name in _SAMPLING if facts.get(name) is not None}
    if said.get("top_k") == -1:
        said["top_k"] = 0  # both mean the whole vocabulary
    most = facts.get("max_new_tokens")
    try:
        SamplingParams(max_tokens=most, **said)
    except InvalidParameterError as error:
        name = {"max_tokens": "max_new_tokens"}.get(error.field, error.field)
        raise ModelFilesError(
            f"{directory / FILE}: {name} is {facts[name]!r}; it must be {error.metadata['bound']}"
        ) from error
    return ModelDefaults(sampling=said, max_tokens=most)
