"""`twolane plan`: how many workers a recorded load needs. The CLI runs this module.

Its options and their help need only the extra `cli`. What planning needs is imported later.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twolane.cli.common import emit
from twolane.cli.examples import epilog
from twolane.cli.full_disk import OnFullDisks
from twolane.cli.rows import Rows
from twolane.cli.waiting import telling
from twolane.deploy.controller.priors import Hardware, UnknownGpuError, hardware
from twolane.security.contexts import followed

if TYPE_CHECKING:
    from twolane.deploy.simulator.cluster import Slo
    from twolane.deploy.simulator.planning import Outcome, Plan, Sizes
    from twolane.deploy.simulator.requests import Requests

_HOURS_A_DAY = 24


class PlanFailed(click.ClickException):
    """There is no plan for this trace, GPU and SLO; the message says why."""

    exit_code = 2


class SloType(click.ParamType[tuple[float, float]]):
    """`300/15`: limits in ms for the time to first token, and for the p99 of a request's gaps."""

    name = "TTFT/GAP"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        first, _, gap = str(value).partition("/")
        try:
            ttft_ms, gap_ms = float(first), float(gap)
        except ValueError:
            self.fail(f"{value!r} is not TTFT/GAP in milliseconds, such as 300/15", param, ctx)
        if not (0 < ttft_ms < 1e7 and 0 < gap_ms < 1e7):
            self.fail(f"{value!r}: both times must be above 0", param, ctx)
        return ttft_ms, gap_ms


@click.command(
    cls=OnFullDisks,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=epilog("plan"),
)
@click.option(
    "--trace", "path", required=True, metavar="FILE", type=click.Path(path_type=Path),
    help="CSV, plain or gzipped: arrival_ms,prompt_tokens,output_tokens, or an Azure trace.",
)  # fmt: skip
@click.option(
    "--slo", "slo_ms", required=True, type=SloType(), metavar="TTFT/GAP",
    help="Milliseconds to the first token, and for the 99th percentile of a request's gaps.",
)  # fmt: skip
@click.option("--gpu", default="h200", show_default=True, help="What one worker runs on.")
@click.option(
    "--share", type=click.FloatRange(0.01, 0.9999), default=0.9, show_default=True,
    help="Of the requests that shall hold the SLO.",
)  # fmt: skip
@click.option(
    "--gpus", type=click.IntRange(min=1), help="Say what rate so many GPUs hold, in each division."
)
@click.option(
    "--most-gpus", type=click.IntRange(min=2), default=64, show_default=True,
    help="Look no further.",
)  # fmt: skip
@click.option(
    "--replay", type=click.IntRange(min=1), metavar="N",
    help="Play the first N requests on the planned cluster too: with the real router and workers, "
    "in virtual time.",
)  # fmt: skip
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw what was tried, as PNG."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def plan(
    *, path: Path, slo_ms: tuple[float, float], gpu: str, share: float, gpus: int | None,
    most_gpus: int, replay: int | None, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say how many workers of each role a recorded load needs, and what they cost.

    Simulates the trace on workers whose step times were measured on that GPU (an 8B model in bf16),
    with separate pools and with colocated workers, and looks for the fewest GPUs that hold the SLO.
    """
    if gpus is not None and plot is not None:
        raise click.UsageError("--plot draws what a plan tried: leave out --gpus")
    if gpus is not None and replay is not None:
        raise click.UsageError("--replay plays a plan: leave out --gpus")
    if plot is not None:
        _check_plot(plot)
    _check_installed("numpy", "planning")
    from twolane.deploy.simulator.cluster import Slo
    from twolane.deploy.simulator.planning import PlanError, make_plan
    from twolane.deploy.simulator.trace_file import TraceError, read_trace

    slo = Slo(ttft_s=slo_ms[0] / 1e3, gap_s=slo_ms[1] / 1e3)
    try:
        made = hardware(gpu)
        requests = read_trace(path)
        with telling(lambda: f"{len(requests):,} requests are simulated on clusters of many sizes"):
            if gpus is not None:
                rates = _rates(requests, gpus, gpu, slo, share)
            else:
                found = make_plan(requests, made, slo, share=share, most_gpus=most_gpus)
    except (TraceError, PlanError, UnknownGpuError) as error:
        raise PlanFailed(str(error)) from None
    if gpus is not None:
        _show_rates(rates, requests, as_json)
        return
    played = None
    if replay is not None:
        with telling(lambda: f"the first {replay:,} requests are played on the planned cluster"):
            played = _replay(requests.first(replay), found, made, slo)
    if as_json:
        click.echo(json.dumps(_document(found, requests) | _played_document(played), indent=2))
    else:
        _show(found, requests, share)
        if played is not None:
            click.echo(str(played))
    if plot is not None:
        title = f"{path.name}: {len(requests):,} requests, {requests.rate_per_s:.3g} a second"
        _draw(plot, title, found, slo, share)
        if not as_json:
            click.echo(f"plot: {plot}")


def _check_installed(module: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise click.ClickException(
            f"{what} needs {module}, which is not installed: pip install 'twolane[plan]'"
        )


def _check_plot(plot: Path) -> None:
    """Raise `ClickException` if it could not be drawn, before any work."""
    if plot.suffix.lower() != ".png":
        raise click.UsageError(f"--plot draws a PNG: {plot} must end in .png")
    try:
        _try_to_write(followed(plot))
    except OSError as error:
        raise click.UsageError(f"--plot: {plot} cannot be written: {error.strerror}") from None
    _check_installed("matplotlib", "--plot")


def _try_to_write(path: Path) -> None:
    """Raise the OSError of writing that file; it is left as it is, or absent."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for its reader
            os.close(os.open(path, os.O_WRONLY))
    else:
        path.unlink()


def _draw(plot: Path, title: str, found: Plan, slo: Slo, share: float) -> None:
    """Raises `ClickException` if it cannot be written."""
    from twolane.deploy.simulator.plots import draw_plan

    drawn = io.BytesIO()
    draw_plan(title, found, slo, share).savefig(drawn, format="png", dpi=110)
    try:
        plot.write_bytes(drawn.getvalue())
    except OSError as error:
        raise click.ClickException(f"cannot write {plot}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Played:
    """What `--replay` found: shares of so many requests that held the SLO."""

    sizes: Sizes
    requests: int
    held: float
    held_by_model: float

    def __str__(self) -> str:
        return (
            f"{self.sizes} with the real router and workers: {self.held:.1%} of the first "
            f"{self.requests:,} requests held the SLO, where the model says "
            f"{self.held_by_model:.1%}"
        )


def _replay(requests: Requests, found: Plan, made: Hardware, slo: Slo) -> _Played:
    """Play them on the smaller one of the clusters found. Raises `PlanFailed`."""
    try:
        from twolane.deploy.simulator.planning import simulate
        from twolane.deploy.virtual_cluster.replay import play, unlike
        from twolane.deploy.virtual_cluster.timed import shape
    except ModuleNotFoundError as error:
        raise PlanFailed(
            f"--replay needs {error.name}, which is not installed: pip install "
            "'twolane[plan,router]'"
        ) from None
    outcomes = [outcome for outcome in (found.split, found.colocated) if outcome is not None]
    sizes = min(outcomes, key=lambda outcome: outcome.sizes.gpus).sizes
    roles = ["p"] * sizes.prefill + ["d"] * sizes.decode + ["pd"] * sizes.colocated
    seen = play(unlike(requests), shape(made, roles), gap_jitter_s=made.gap_jitter_s)
    held = sum(one.holds(slo) for one in seen) / len(seen)
    return _Played(sizes, len(seen), held, simulate(requests, sizes, made, slo).held)


def _rates(
    requests: Requests, gpus: int, gpu: str, slo: Slo, share: float
) -> list[tuple[Sizes, float]]:
    """For each way to divide the GPUs, the highest rate that holds the SLO; best first."""
    from twolane.deploy.simulator.planning import Sizes, highest_rate

    sizes = [Sizes(prefill=n, decode=gpus - n) for n in range(1, gpus)]
    sizes.append(Sizes(colocated=gpus))
    made = hardware(gpu)
    rates = [(one, highest_rate(requests, one, made, slo, share=share)) for one in sizes]
    return sorted(rates, key=lambda rate: -rate[1])


def _show_rates(rates: list[tuple[Sizes, float]], requests: Requests, as_json: bool) -> None:
    if as_json:
        rows = [{"workers": str(sizes), "rate_per_s": round(rate, 3)} for sizes, rate in rates]
        click.echo(json.dumps({"trace_rate_per_s": requests.rate_per_s, "held": rows}, indent=2))
        return
    table = Rows(("workers",), ("requests/s held", "of the trace's rate"))
    for sizes, rate in rates:
        table.add_row(str(sizes), f"{rate:.3g}", f"{rate / requests.rate_per_s:.2f}x")
    emit(table)


def _show(found: Plan, requests: Requests, share: float) -> None:
    click.echo(_verdict(found))
    table = Rows(("workers",), ("GPUs", "held", "GPU-hours", "a day of it"))
    for outcome in (found.split, found.colocated):
        if outcome is not None:
            count = outcome.sizes.gpus
            table.add_row(
                str(outcome.sizes), str(count), f"{outcome.held:.1%}",
                f"{count * found.hours:.3g}", f"{count * _HOURS_A_DAY}",
            )  # fmt: skip
    emit(table)
    click.echo(
        f"{len(requests):,} requests in {found.hours:.2g} h, {requests.rate_per_s:.3g} a second; "
        f"the SLO is to hold for {share:.0%}"
    )


def _verdict(found: Plan) -> str:
    """The plan in one sentence."""
    split, colocated = found.split, found.colocated
    if split is None:
        assert colocated is not None
        return f"{colocated.sizes}: no division into two pools holds the SLO"
    if colocated is None:
        most = max(outcome.sizes.colocated for outcome in found.tried)
        return f"{split.sizes}: even {most} colocated workers do not hold the SLO"
    saved = colocated.sizes.gpus - split.sizes.gpus
    if saved < 0:
        return f"{colocated.sizes}: better than {split.sizes} by {_gpus(-saved)}"
    if saved > 0:
        return f"{split.sizes}: better than {colocated.sizes} by {_gpus(saved)}"
    return f"{split.sizes}, or {colocated.sizes}: both need {_gpus(split.sizes.gpus)}"


def _gpus(n: int) -> str:
    return "1 GPU" if n == 1 else f"{n} GPUs"


def _played_document(played: _Played | None) -> dict[str, Any]:
    if played is None:
        return {}
    return {
        "replayed": {
            "workers": str(played.sizes),
            "requests": played.requests,
            "held": round(played.held, 4),
            "held_by_model": round(played.held_by_model, 4),
        }
    }


def _document(found: Plan, requests: Requests) -> dict[str, Any]:
    def fields(outcome: Outcome | None) -> dict[str, Any] | None:
        if outcome is None:
            return None
        return {
            "prefill": outcome.sizes.prefill,
            "decode": outcome.sizes.decode,
            "colocated": outcome.sizes.colocated,
            "gpus": outcome.sizes.gpus,
            "held": round(outcome.held, 4),
            "late_first": round(outcome.late_first, 4),
            "late_gaps": round(outcome.late_gaps, 4),
            "gpu_hours": round(outcome.sizes.gpus * found.hours, 3),
        }

    return {
        "requests": len(requests),
        "rate_per_s": requests.rate_per_s,
        "hours": found.hours,
        "split": fields(found.split),
        "colocated": fields(found.colocated),
        "tried": [fields(outcome) for outcome in found.tried],
    }


if __name__ == "__main__":
    plan(prog_name="twolane plan")
