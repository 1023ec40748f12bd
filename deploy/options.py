"""Command-line options that `up`, `router` and `worker` share, and the specs they become."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from deploy.hub import BUNDLED, find_model
from deploy.spec import (
    AUTO,
    MAX_PORT,
    MAX_SOCKETS,
    TRANSPORTS,
    LimitsSpec,
    ModelSpec,
    TimingSpec,
    http_port_above,
)

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_AT_LEAST_1 = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)

MODEL_OPTIONS = [
    click.option(
        "--model",
        default=BUNDLED,
        show_default=True,
        metavar="DIR_OR_HUB_ID",
        help="What to serve.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["model", "fake"]),
        default="model",
        show_default=True,
        help="`fake` answers nonsense without computing.",
    ),
    click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where the model runs; auto: on a GPU where there is one.",
    ),
    click.option(
        "--tensor-parallel",
        type=click.IntRange(1, 8),
        default=1,
        show_default=True,
        help="GPUs that share each worker's model; on a CPU, processes.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16"]),
        default="auto",
        show_default=True,
        help="Data type of weights and KV pages; auto: bfloat16 on a GPU, float32 on a CPU.",
    ),
    click.option(
        "--exact", is_flag=True, help="Same request, same bits: alone or in a crowd, on any path."
    ),
    click.option("--pages", type=_AT_LEAST_1, help="KV pages of each worker."),
    click.option(
        "--kv-bytes", type=_AT_LEAST_1, help="Instead of --pages: bytes of each worker's KV pages."
    ),
    click.option(
        "--page-tokens",
        type=_AT_LEAST_1,
        help="Tokens of a page, on a CPU: a multiple of 16; on a GPU they are always 64.",
    ),
    click.option("--threads", type=_AT_LEAST_1, help="Compute threads of each worker."),
    click.option(
        "--load-format",
        type=click.Choice(["safetensors", "random"]),
        default="safetensors",
        show_default=True,
        help="`random` weights are for benchmarks.",
    ),
    click.option("--max-context-tokens", type=_AT_LEAST_1, help="Less than the model's own limit."),
    click.option(
        "--weights",
        type=click.Choice(["auto", "fp8"]),
        default="auto",
        show_default=True,
        help="fp8: rounded to FP8 as they are loaded; auto: as the model has them. On a GPU.",
    ),
    click.option(
        "--kv-dtype",
        type=click.Choice(["auto", "fp8"]),
        default="auto",
        show_default=True,
        help="fp8: keys and values in FP8, half the memory; auto: as --dtype says. On a GPU.",
    ),
]
TRANSPORT_OPTIONS = [
    click.option(
        "--transport",
        "transports",
        multiple=True,
        type=click.Choice(TRANSPORTS),
        help="How pages travel; may be repeated, best first.  [default: the best that works]",
    ),
    click.option(
        "--checksums/--no-checksums",
        default=None,
        help="Compare a checksum of each page on both sides. Over networks (nixl, tcp) always: "
        "--no-checksums is for a --transport of one host.  [default: all but cuda_ipc]",
    ),
    click.option(
        "--sockets",
        type=click.IntRange(1, MAX_SOCKETS),
        help="Sockets from each sender to each receiver, for unix and tcp.  [default: 1]",
    ),
]
HTTP_OPTIONS = [
    click.option(
        "--http-port",
        type=click.IntRange(0, MAX_PORT),
        help="Port of the OpenAI-style HTTP API, at --host.  [default: --port + 2]",
    ),
    click.option("--no-http", is_flag=True, help="Serve no HTTP."),
]
ROUTER_OPTIONS = [
    click.option(
        "--generation-config",
        default=AUTO,
        show_default=True,
        metavar="auto|none|DIR",
        help="Whose generation_config.json tells what requests take that set no temperature, "
        "top_k, top_p, min_p, repetition_penalty or max_tokens; auto: the model's.",
    ),
]
LOG_OPTIONS = [
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
    )
]
LIMIT_OPTIONS = [
    click.option(
        "--step-tokens",
        type=_AT_LEAST_1,
        help="Most tokens of a step; longer prompts are split.",
    ),
    click.option("--decode-rows", type=_AT_LEAST_1, help="Most answers that one worker decodes."),
    click.option("--max-prompt-tokens", type=_AT_LEAST_1, help="Longer prompts are refused."),
    click.option(
        "--max-output-tokens", type=_AT_LEAST_1, help="Longest answer; more max_tokens are refused."
    ),
    click.option("--max-queued", type=_AT_LEAST_1, help="Requests that may wait at the router."),
    click.option(
        "--growth-tokens",
        type=_AT_LEAST_1,
        help="Tokens that each answer reserves.",
    ),
    click.option(
        "--prefill-window-s",
        type=click.FloatRange(min=0),
        help="The longest that a prompt of a burst waits for others.",
    ),
    click.option(
        "--prefill-watermark-rows",
        type=click.IntRange(min=0),
        help="More waiting prompts than so many are a burst.",
    ),
    click.option(
        "--holding-cap-share",
        type=click.FloatRange(min=0, max=1, min_open=True),
        help="Share of a pool that may wait for decode workers before prefills stop.",
    ),
]
_TIMES = {
    "heartbeat_s": "How often everybody shows signs of life.",
    "suspicion_s": "Silence after which requests go elsewhere.",
    "lease_s": "How long pages are held for a silent peer.",
    "grace_s": "How long answers outlive a lost router.",
    "stop_grace_s": "How long running answers get at a stop.",
}
TIMING_OPTIONS = [
    click.option(
        f"--{field.name.replace('_', '-')}",
        type=_SECONDS,
        default=field.default,
        show_default=True,
        help=_TIMES[field.name],
    )
    for field in fields(TimingSpec)
]


def with_options(options: list[Callable[[CommandT], CommandT]]) -> Callable[[CommandT], CommandT]:
    """A decorator that adds them all, shown in this order."""

    def decorate(command: CommandT) -> CommandT:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def model_spec(given: dict[str, Any]) -> ModelSpec:
    """Find the model; the machine's cores are this worker's. Raises `StartError`."""
    if given["pages"] is not None and given["kv_bytes"] is not None:
        raise click.UsageError("--pages and --kv-bytes both say how large the pool is: give one")
    name, model_dir = find_model(given["model"])
    cores, ranks = len(os.sched_getaffinity(0)), given["tensor_parallel"]
    return ModelSpec(
        model_dir=str(model_dir),
        name=name,
        engine=given["engine"],
        device=given["device"],
        dtype=given["dtype"],
        exact=given["exact"],
        n_pages=given["pages"],
        kv_bytes=given["kv_bytes"],
        page_tokens=given["page_tokens"],
        threads=given["threads"] or max(1, cores // ranks),
        tensor_parallel=ranks,
        max_context_tokens=given["max_context_tokens"],
        load_format=given["load_format"],
        weights=given["weights"],
        kv_dtype=given["kv_dtype"],
    )


def http_port(given: dict[str, Any]) -> int | None:
    """None: no HTTP door."""
    port: int | None = given["http_port"]
    if not given["no_http"]:
        return http_port_above(given["port"]) if port is None else port
    if port is not None:
        raise click.UsageError("--http-port with --no-http: give one")
    return None


def limits_spec(given: dict[str, Any]) -> LimitsSpec:
    return LimitsSpec(**{field.name: given[field.name] for field in fields(LimitsSpec)})


def timing_spec(given: dict[str, Any]) -> TimingSpec:
    """Raises `click.UsageError` for times that do not go together."""
    try:
        return TimingSpec(**{field.name: given[field.name] for field in fields(TimingSpec)})
    except ValueError as error:
        raise click.UsageError(str(error)) from error
