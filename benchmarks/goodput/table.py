"""The tables of a goodput measurement."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from benchmarks.goodput.measured import Measured
from benchmarks.goodput.reference import Reference, key
from benchmarks.goodput.tournament import Tournament
from benchmarks.load.record import Slo


def rates_table(contest: Tournament, contenders: Sequence[str], reference: Reference) -> Table:
    """One line per run: latencies, and the share of requests that met each SLO."""
    slos = contest.config.slos
    table = Table(title="Runs (held: share of requests, 95 % interval)", title_justify="left")
    for header in ("", "req/s", "n", "TTFT p50", "p99", "gap p50", "p99", "own p99*"):
        table.add_column(header, justify="left" if not header else "right")
    for slo in slos:
        table.add_column(str(slo), justify="right")
    table.add_column("")
    for name in contenders:
        runs = [run for run in contest.runs if run.contender == name]
        for run in sorted(runs, key=lambda run: run.rate_per_s):
            table.add_row(*_cells(run, slos, contest.config.late_s))
        table.add_section()
    for name, mode in reference.items():
        for nth, rate_per_s in enumerate(mode.rates_per_s):
            times = (mode.ttft_p50_ms[nth], mode.ttft_p99_ms[nth])
            held = [mode.held_at(rate_per_s, slo) for slo in slos]
            table.add_row(
                name, f"{rate_per_s:g}", "", *map(_ms, times), "", _ms(mode.gap_p99_ms[nth]), "",
                *("–" if share is None else f"{share:.2f}" for share in held), "reference",
            )  # fmt: skip
        table.add_section()
    table.caption = "Times in ms. * what 90 % of the requests keep the p99 of their own gaps within"
    return table


def served_table(contest: Tournament, contenders: Sequence[str], reference: Reference) -> Table:
    """One line per SLO: the highest rate that meets it."""
    share = contest.config.search.share
    title = f"Goodput: highest rate (requests/s) at which {share:.0%} hold the SLO"
    table = Table(title=title, title_justify="left")
    table.add_column("TTFT / gap p99")
    for name in [*contenders, *reference]:
        table.add_column(name, justify="right")
    for slo in contest.config.slos:
        measured = [format_outcome(contest, name, slo) for name in contenders]
        known = [mode.served_per_s.get(key(slo)) for mode in reference.values()]
        table.add_row(str(slo), *measured, *("–" if r is None else f"~{r:g}" for r in known))
    return table


def format_outcome(contest: Tournament, contender: str, slo: Slo) -> str:
    """`12 (12.5 misses)` for each round; unknown parts are omitted."""
    texts = []
    for found in contest.brackets(contender, slo):
        low, high = found.low_per_s, found.high_per_s
        if low is None and high is None:
            texts.append("–")
        elif low is None:
            texts.append(f"below {high:g}")
        elif high is None:
            texts.append(f"at least {low:g}")
        else:
            texts.append(f"{low:g} ({high:g} misses)")
    return ", ".join(texts) or "–"


def why_missed(contest: Tournament, contender: str, slo: Slo) -> str:
    """For the lowest rate that misses: what its requests missed, and where they waited."""
    highs = [found.high_per_s for found in contest.brackets(contender, slo)]
    runs = [
        run
        for run in contest.runs
        if run.contender == contender and run.rate_per_s in highs and len(run)
        and not run.is_late(contest.config.late_s)
    ]  # fmt: skip
    if not runs:
        return "no rate misses"
    run = min(runs, key=lambda run: run.rate_per_s)
    misses = run.misses(slo)
    shares = {
        "TTFT alone": misses.late,
        "gaps alone": misses.halting,
        "both": misses.both,
        "failed": misses.failed,
    }
    parts = [f"{what} {count / len(run):.0%}" for what, count in shares.items() if count]
    waits = {
        what: run.figures.get(f"{what}_p99_ms")
        for what in ("queued", "prefill_wait", "prefill", "transfer", "decode_wait")
    }
    spent = [f"{what} {value:.0f}" for what, value in waits.items() if value is not None]
    where = f"; p99 in ms: {', '.join(spent)}" if spent else ""
    return f"at {run.rate_per_s:g}/s: {', '.join(parts)}{where}"


def line(run: Measured, slos: Sequence[Slo], late_s: float) -> str:
    """One run, as printed during the measurement."""
    held = "  ".join(f"{slo}: {run.tally(slo).share:.2f}" for slo in slos)
    name, rate, n, ttft, ttft_p99, _, gap_p99, *_ = _cells(run, [], late_s)
    note = _note(run, late_s)
    times = f"TTFT {ttft} / {ttft_p99}, gap p99 {gap_p99}"
    return f"{name} {rate}/s: {n} requests, {times} ms, held {held}  {note}".rstrip()


def _cells(run: Measured, slos: Sequence[Slo], late_s: float) -> list[str]:
    names = (
        "ttft_p50_ms", "ttft_p99_ms", "gap_p50_ms", "gap_p99_ms", "request_gap_p99_p90_ms",
    )  # fmt: skip
    held = []
    for slo in slos:
        tally = run.tally(slo)
        low, high = tally.interval
        held.append(f"{tally.share:.2f} ({low:.2f}–{high:.2f})")
    times = [_ms(run.figures[name]) for name in names]
    n_requests = str(len(run))
    return [run.contender, f"{run.rate_per_s:g}", n_requests, *times, *held, _note(run, late_s)]


def _note(run: Measured, late_s: float) -> str:
    notes = []
    if run.is_late(late_s):
        late_ms = run.figures["client_late_p99_ms"]
        notes.append(f"VOID: client {late_ms:.0f} ms late (p99)")
    if run.halted:
        notes.append(f"given up: {run.halted}")
    failed = len(run.failures)
    if failed and not run.halted:
        notes.append(f"{failed} failed")
    together = run.figures["tokens_per_message"]
    if together is not None and together > 1.05:
        notes.append(f"{together:.2f} tokens a message: gaps within one are 0")
    if run.figures["cached_prompt_tokens"]:
        notes.append("prompts were cached")
    return "; ".join(notes)


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
