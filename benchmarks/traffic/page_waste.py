"""KV memory wasted because a row's last page is only partly full.

`python -m benchmarks.traffic.page_waste` replays lengths of recorded and synthetic workloads
through the worker's own page arithmetic (`twolane.worker.rows`, `twolane.worker.growth_reserve`)
and the engine's page allocator:

    pages of a row   |== full ==|== full ==|== part ...... |
                                            used    wasted

    decode_share   wasted positions over held positions, both summed over every decode step of every
                   row: a decode worker's waste at a random moment, if steps are equally long
    end_share      the same at the last step of each row only
    prompt_share   the same when the prompt has been computed: a prefill worker's waste

Rows share no pages here, so replaying rows one by one gives the sums of any batch. Promised pages
that are not taken yet count as free, not as waste.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from benchmarks.results import save
from benchmarks.traffic.plan import PlanConfig, make_plan
from benchmarks.traffic.workload import find_workload
from twolane.engine.allocator import PageAllocator
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.step import EngineSpec
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.growth_reserve import GrowthReserve
from twolane.worker.rows import Row

WORKLOADS = ("azure-code", "azure-conv", "code", "chat")
PAGE_TOKENS = (16, 64)
AIM_PAGE_TOKENS, AIM_SHARE = 16, 0.08
_CONTEXT_TOKENS = 32_768


@dataclass(slots=True)
class Waste:
    """Positions held by pages, and how many of them are empty."""

    held: int = 0
    wasted: int = 0

    def count(self, n_held: int, n_used: int) -> None:
        assert 0 < n_used <= n_held
        self.held += n_held
        self.wasted += n_held - n_used

    @property
    def share(self) -> float:
        return self.wasted / self.held


@dataclass(frozen=True, slots=True)
class WasteFigures:
    """See the module's docstring."""

    decode_share: float
    end_share: float
    prompt_share: float


def measure_waste(lengths: Iterable[tuple[int, int]], page_tokens: int) -> WasteFigures:
    """Rows of (prompt tokens, output tokens), each grown step by step to its last token."""
    n_pages = _CONTEXT_TOKENS // page_tokens
    config = FakeEngineConfig(
        n_pages=n_pages, page_tokens=page_tokens, max_context_tokens=_CONTEXT_TOKENS
    )
    spec, pages = FakeEngine(config).spec, PageAllocator(n_pages)
    reserve = GrowthReserve(pages)
    decode, end, prompt = Waste(), Waste(), Waste()
    for number, (n_prompt, n_output) in enumerate(lengths):
        row = _row(number, n_prompt, n_output, spec)
        row.pages = reserve.try_take_new(row.n_prompt_pages) or []
        prompt.count(row.n_positions, n_prompt)
        for _ in range(n_output - 1):  # the prefill worker samples the first token
            row.append(0)
            grown = reserve.try_grow(row, row.pages_for(row.n_tokens) - len(row.pages))
            assert grown, "the pool holds a whole context"
            decode.count(row.n_positions, row.n_tokens)
        end.count(row.n_positions, row.n_tokens)
        pages.release(row.pages)
    pages.check_integrity()
    return WasteFigures(decode.share, end.share, prompt.share)


def _row(number: int, n_prompt: int, n_output: int, spec: EngineSpec) -> Row:
    assign = worker_pb2.Assign(token_ids=[0] * n_prompt, n_prompt=n_prompt)
    params = SamplingParams(max_tokens=n_output, ignore_eos=True)
    return Row(assign, params, spec, number=number, arrived_s=0.0)


def draw_lengths(workload: str, n_requests: int, seed: int) -> Sequence[tuple[int, int]]:
    """The lengths that the load generator would send for this seed."""
    config = PlanConfig(rate_per_s=1.0, n_requests=n_requests, context_tokens=_CONTEXT_TOKENS)
    plan = make_plan(find_workload(workload), config, seed)
    return list(zip(plan.prompt_tokens.tolist(), plan.output_tokens.tolist(), strict=True))


@click.command(help="Measure KV memory wasted by partial pages.")
@click.option("--requests", "n_requests", default=3_000, show_default=True, help="A workload.")
@click.option("--seed", default=1, show_default=True)
def main(n_requests: int, seed: int) -> None:
    table = Table("workload", "page tokens", "decode", "end", "prompt")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for workload in WORKLOADS:
        lengths = draw_lengths(workload, n_requests, seed)
        figures[workload] = {}
        for page_tokens in PAGE_TOKENS:
            waste = measure_waste(lengths, page_tokens)
            shares = (waste.decode_share, waste.end_share, waste.prompt_share)
            table.add_row(workload, str(page_tokens), *(f"{share:.2%}" for share in shares))
            figures[workload][f"page_tokens_{page_tokens}"] = {
                "decode_share": round(waste.decode_share, 5),
                "end_share": round(waste.end_share, 5),
                "prompt_share": round(waste.prompt_share, 5),
            }
    Console().print(table)
    worst = max(figures[name][f"page_tokens_{AIM_PAGE_TOKENS}"]["decode_share"] for name in figures)
    Console().print(
        f"worst at {AIM_PAGE_TOKENS} tokens a page: {worst:.2%} (aim: under {AIM_SHARE:.0%})"
    )
    path = save("page_waste", {"requests_per_workload": n_requests, "seed": seed, "waste": figures})
    Console().print(f"saved {path}")


if __name__ == "__main__":
    main()
