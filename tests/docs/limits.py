"""docs/limits.md: every bound, its default, the option that changes it, what happens beyond.

Values and files come from the code; what a bound means is in `bounds`, whose rows must name
every field of the classes there: a new bound without a row fails the test.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.docs.bound_rows import Row
from tests.docs.bounds import INVALID, SECTIONS
from tests.docs.tables import table
from twolane import params
from twolane.calls import resuming
from twolane.deploy.process import log_limit
from twolane.deploy.spec import settings
from twolane.engine import config as engine_config
from twolane.engine.cuda import plans
from twolane.errors import InvalidParameterError
from twolane.kvtransfer.link import handshake
from twolane.kvtransfer.transports.common import listener
from twolane.kvtransfer.transports.stream import outlet, records
from twolane.params import SamplingParams
from twolane.router import limits
from twolane.router.doors import multiplex
from twolane.router.doors.http import connection
from twolane.rpc import channel_options, link, metrics_http, secret

ROOT = Path(__file__).resolve().parents[2]
# Constants: module, name, what they bound, what happens beyond.
OTHERS = (
    (limits, "MAX_REQUEST_ID_CHARS", "characters of a request id", INVALID),
    (limits, "MAX_ROLE_CHARS", "characters of a chat message's role", INVALID),
    (engine_config, "MAX_RANKS", "ranks of a worker (`--tensor-parallel`)", "the start fails"),
    (engine_config, "MAX_THREADS", "compute threads of a process (`--threads`)", "the start fails"),
    (plans, "STEP_ROWS", "rows of a GPU's step (`--decode-rows`)", "the start fails"),
    (settings, "MOST_WORKERS", "workers of a pool", "the start fails, `scale` is refused"),
    (
        settings,
        "_MOST_TIMEOUT_S",
        "`--heartbeat-s`, `--suspicion-s`, `--lease-s`, `--grace-s`",
        "the start fails",
    ),
    (
        channel_options,
        "MAX_MESSAGE_BYTES",
        "a gRPC message inside a cluster, and an answer",
        "call fails",
    ),
    (
        channel_options,
        "SILENCE_S",
        "silence of a gRPC connection, stopped clients' too",
        "it is asked for a sign of life",
    ),
    (channel_options, "SIGN_OF_LIFE_S", "its answer", "closed, its requests are cancelled"),
    (handshake, "HELLO_S", "a transfer link until its hello", "closed"),
    (listener, "HELLO_WITHIN_S", "a page connection until its hello and its key", "closed"),
    (
        listener,
        "MOST_CONNECTIONS",
        "page connections of a worker",
        "the oldest without a hello goes",
    ),
    (outlet, "HANDSHAKE_S", "a receiver's proof of the key of a page lane", "the post fails"),
    (records, "RECORD_BYTES", "a record of an encrypted page lane", "closed"),
    (multiplex, "WINDOW_TOKENS", "unread tokens of an answer on an SDK's stream", "it waits"),
    (resuming, "LOST_S", "an SDK's answer without a router", "UnavailableError"),
    (resuming, "RESTART_S", "the same, of a cluster with one router", "UnavailableError"),
    (link, "MAX_UNSENT_MESSAGES", "messages that a peer is behind", "its stream is closed"),
    (link, "MAX_UNSENT_BYTES", "bytes that a peer is behind, of several messages", "the same"),
    (secret, "MIN_SECRET_CHARS", "characters of a cluster's secret, at least", "the start fails"),
    (connection, "_HELD_BYTES", "pipelined HTTP requests behind the running one", "not read"),
    (metrics_http, "MOST_CONNECTIONS", "connections to a metrics page", "closed"),
)
# A value beyond each bound of SamplingParams, for which the error names the bound.
BEYOND: Mapping[str, Any] = {
    "max_tokens": 0, "temperature": -1.0, "top_k": -1, "top_p": 2.0, "min_p": 2.0,
    "repetition_penalty": 0.0, "presence_penalty": 1e9, "frequency_penalty": 1e9, "seed": -1,
    "top_logprobs": 10**6,
}  # fmt: skip


def page() -> str:
    """The whole page."""
    return "\n\n".join(_parts()) + "\n"


def _parts() -> Iterable[str]:
    yield "# Limits"
    yield (
        "Made by `make docs` (`tests/docs/limits.py`) from the config classes; a test compares. "
        "Every bound is on by default. A bound whose row names no option is changed in the "
        "source file that is named above its table. Errors are those of `twolane/errors.py`; by "
        "gRPC each has a status (drawn there), by HTTP one too (`router/doors/http/errors.py`). "
        "Refusals are counted in `twolane_router_refused_total` of the router's metrics, by the "
        "reasons of `twolane/refusals.py:Refusal`."
    )
    for section in SECTIONS:
        yield f"## {section.title}\n\n{section.text}"
        for config, rows in section.rows.items():
            path = Path(inspect.getfile(config)).resolve().relative_to(ROOT)
            yield f"`{config.__name__}` in `{path}`:"
            yield table(("field", "bounds", "default", "option", "beyond it"), _cells(config, rows))
    yield "## Others"
    yield table(("bounds", "value", "where", "beyond it"), _others())
    yield "## Sampling parameters\n\nIn `twolane/params.py`; beyond it, `InvalidParameterError`."
    yield table(("parameter", "bound"), _sampling())


def _cells(config: type, rows: Mapping[str, Row]) -> Iterable[Sequence[str]]:
    for name, row in rows.items():
        option = f"`{row.option}`" if row.option else ""
        yield (f"`{name}`", row.what, _shown(name, default_of(config, name)), option, row.beyond)


def default_of(config: type, name: str) -> object:
    """Of a field of a config class."""
    (field,) = (each for each in fields(config) if each.name == name)
    default: object = field.default
    return default


def _shown(name: str, value: object) -> str:
    if value is None:
        return "none"
    if name.endswith("_s"):
        return f"{value:g} s"
    if name.endswith("_bytes"):
        assert isinstance(value, int)
        return f"{value >> 20} MiB" if value >> 20 else f"{value >> 10} KiB"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _others() -> Iterable[Sequence[str]]:
    for module, name, what, beyond in OTHERS:
        path = Path(inspect.getfile(module)).resolve().relative_to(ROOT)
        yield (what, _shown(name.lower(), getattr(module, name)), f"`{path}:{name}`", beyond)

    per_s = inspect.signature(log_limit.LogLimit).parameters["per_s"].default
    where = "`deploy/process/log_limit.py:LogLimit`"
    yield ("log records of a kind, a second", str(per_s), where, "one line counts the rest")


def _sampling() -> Iterable[Sequence[str]]:
    for name, value in BEYOND.items():
        yield (f"`{name}`", bound_of(name, value))
    yield ("`min_tokens`", "0 to max_tokens")
    yield ("`stop`", f"{params.MAX_STOP_STRINGS} of {params.MAX_STOP_STRING_CHARS} characters")
    yield ("`stop_token_ids`", f"at most {params.MAX_STOP_TOKEN_IDS}")
    yield ("`logit_bias`", f"at most {params.MAX_LOGIT_BIAS} tokens, each -10000 to 10000")


def bound_of(name: str, value: object) -> str:
    """What the error says that a parameter must be."""
    try:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    except InvalidParameterError as error:
        return error.metadata["bound"]
    raise AssertionError(f"{name}={value} is accepted")
