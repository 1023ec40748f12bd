"""Prints a cluster's events as lines in a terminal."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.spec.cluster_spec import ClusterSpec, PoolSpec
from twolane.rpc.listen import host_of, is_local, is_unspecified

_STYLE = {
    Kind.STARTED: "green",
    Kind.DIED: "red",
    Kind.RESTARTING: "yellow",
    Kind.FENCED: "yellow",
    Kind.LOST: "red",
    Kind.FOUND: "green",
    Kind.FAILED: "red",
}


class Progress:
    """A callable that prints one event. Times shown are in seconds since its construction."""

    def __init__(
        self,
        console: Console,
        cluster: ClusterSpec,
        log_dir: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._cluster = cluster
        self._clock = clock
        self._start_s = clock()
        self._is_ready = False
        console.print(f"{_headline(cluster)}; logs in {log_dir}", soft_wrap=True)

    def __call__(self, event: Event) -> None:
        after_s = self._clock() - self._start_s
        match event.kind:
            case Kind.READY:
                self._ready(event, after_s)
            case Kind.STOPPING if self._is_ready:
                within_s = self._cluster.timing.stop_grace_s
                self._console.print(
                    f"{after_s:7.1f} s  stopping   running answers have {within_s:g} s; "
                    "Ctrl-C ends them at once",
                    soft_wrap=True,
                )
            case Kind.STOPPING | Kind.STOPPED:
                self._console.print(f"{after_s:7.1f} s  {event.kind.value}")
            case _:
                style, facts = _STYLE.get(event.kind, "default"), escape(self._facts(event))
                name = f"{event.name:<13}" if facts else event.name
                self._console.print(
                    f"{after_s:7.1f} s  [{style}]{event.kind.value:<10}[/] [bold]{name}[/]"
                    f"{' ' * bool(facts)}{facts}",
                    soft_wrap=True,
                )

    def _ready(self, event: Event, after_s: float) -> None:
        self._is_ready = True
        name, endpoint = self._cluster.model.name, _dialled(event.endpoint)
        at = "" if endpoint.endswith(":7200") else f" --endpoint {shlex.quote(endpoint)}"
        tls = self._cluster.tls
        if tls is not None and not is_local(host_of(event.endpoint)):
            at += f" --ca {shlex.quote(str(tls.ca))} --cert CLIENT.crt --key CLIENT.key"
        http = f", OpenAI's way at [bold]{self._url(event.http)}/v1[/]" if event.http else ""
        hints = (
            f'    twolane generate "Once upon a time"{at}\n    twolane chat{at}\n'
            if (self._cluster.model.model_dir / "tokenizer.json").exists()
            else "    it has no tokenizer.json, so prompts and answers are token ids alone:\n"
            f"    twolane generate --token-ids 1,2,3{at}\n"
        )
        self._console.print(
            f"{after_s:7.1f} s  [bold green]ready[/]      {name} answers at [bold]{endpoint}[/]"
            f"{http}\n\n"
            f"{hints}"
            f"    twolane status{'' if not at else f' --endpoint {shlex.quote(event.admin)}'}\n",
            soft_wrap=True,
        )

    def _facts(self, event: Event) -> str:
        pid = f"pid {event.pid}" if event.pid else ""
        metrics = f"{self._url(event.metrics)}/metrics" if event.metrics else ""
        http = f"{self._url(event.http)}/v1" if event.http else ""
        facts = [event.endpoint, http, pid, metrics, event.text]
        return "  ".join(fact for fact in facts if fact)

    def _url(self, address: str) -> str:
        has_tls = self._cluster.tls is not None and not is_local(host_of(address))
        return f"http{'s' * has_tls}://{_dialled(address)}"


def _headline(cluster: ClusterSpec) -> str:
    """bundled (float32, exact): 2 prefill workers and 2 decode workers; Ctrl-C stops it"""
    config = cluster.model.config
    kind = [config.dtype] * (config.dtype != "auto") + ["exact"] * config.exact
    precision = f" ({', '.join(kind)})" if kind else ""
    workers = " and ".join(
        f"{pool.n_workers} {_pool(pool)} worker{'s' * (pool.n_workers != 1)}"
        for pool in cluster.pools
    )
    n_gpus = len({gpu for pool in cluster.pools for gpu in pool.gpus})
    where = f" on {n_gpus} GPU{'s' * (n_gpus != 1)}" if n_gpus else ""
    return f"{escape(config.model_name)}{precision}: {workers}{where}; Ctrl-C stops it"


def _pool(pool: PoolSpec) -> str:
    """decode · writers (decode) · colocated"""
    alone = len(pool.roles) == 1
    return pool.name if not alone or pool.name in pool.roles else f"{pool.name} ({pool.roles[0]})"


def _dialled(address: str) -> str:
    """The address as clients here dial it: 0.0.0.0 is this machine."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if is_unspecified(host) else address
