"""Start-up time: from the command to a ready cluster, and to its first token.

    start_local ----------------> ready ------> first token        second request: ---> first token
    |<------- ready_s ----------->|             |
    |<--------- first_token_s ----------------->|                  |<- warm_ttft_s ->|

`python -m benchmarks.cluster.startup` starts one prefill and one decode worker with the bundled
model, by each launcher, several times in sequence. The operating system's file cache is not cleared
between starts; the very first start is in the list too.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import median

import click
from rich.console import Console
from rich.table import Table

import twolane
from benchmarks.results import save
from twolane.testing import start_local

LAUNCHERS = ("process", "ray")
_PROMPT = "Once upon a time"


@dataclass(frozen=True, slots=True)
class Start:
    """One start, in seconds; see the module's docstring. `stop_s` is from the end of use to the end
    of the last process."""

    ready_s: float
    first_token_s: float
    warm_ttft_s: float
    stop_s: float


def measure_start(launcher: str) -> Start:
    """Start a cluster, get two first tokens, stop it."""
    began_s = time.monotonic()
    with start_local(launcher=launcher) as cluster:
        ready_s = time.monotonic() - began_s
        with cluster.client() as client:
            _wait_for_first_token(client)
            first_token_s = time.monotonic() - began_s
            warm_s = time.monotonic()
            _wait_for_first_token(client)
            warm_ttft_s = time.monotonic() - warm_s
        ended_s = time.monotonic()
    return Start(ready_s, first_token_s, warm_ttft_s, time.monotonic() - ended_s)


def _wait_for_first_token(client: twolane.Client) -> None:
    with client.stream(_PROMPT, max_tokens=16, ignore_eos=True) as stream:
        for chunk in stream:
            if chunk.tokens:
                return
    raise RuntimeError("an answer without tokens")


@click.command(help="Measure the time to start, by launcher.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--launcher", "launchers", multiple=True, default=LAUNCHERS, show_default=True)
def main(repeats: int, launchers: tuple[str, ...]) -> None:
    console = Console()
    table = Table("median of", "launcher", "ready", "first token", "warm TTFT", "stop")
    figures = {}
    for launcher in launchers:
        starts = []
        for number in range(repeats):
            starts.append(measure_start(launcher))
            console.print(f"{launcher} {number + 1}/{repeats}: {starts[-1].ready_s:.2f} s to ready")
        columns = {
            name: [round(asdict(start)[name], 4) for start in starts] for name in asdict(starts[0])
        }
        medians = {name: median(values) for name, values in columns.items()}
        cells = [f"{seconds:.2f} s" for seconds in medians.values()]
        table.add_row(str(repeats), launcher, *cells)
        figures[launcher] = {"median": medians, "each": columns}
    console.print(table)
    path = save("startup", {"repeats": repeats, "workers": "1 prefill, 1 decode", **figures})
    console.print(f"saved {path}")


if __name__ == "__main__":
    main()
