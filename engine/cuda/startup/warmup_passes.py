"""Passes of every usual kind, made once before the first request: graphs are captured, and what
libraries load at a first use is there.

All ranks make the same passes in the same order, whatever time that takes: so it is a list that
bounds them, and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.cuda.sampler import NOT_DRAWN
from twolane.engine.cuda.startup.step_shapes import PassKind, StepShapes, mixed_kinds
from twolane.engine.step import Page, RowResult, RowWork
from twolane.params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
# What the sampler's kernel leaves to the library, all of it.
_ELABORATE = SamplingParams(
    temperature=1.0, top_k=8, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1,
    presence_penalty=0.1, logit_bias={0: 1.0}, top_logprobs=1, seed=1,
)  # fmt: skip


class WarmupPasses:
    """Of one engine that nobody else uses yet. Longest first, as later ones then find room in the
    memory of earlier ones; those that no pool of this size can hold are left out."""

    def __init__(self, engine: CudaEngine, usual: StepShapes, *, tall_rows: int | None) -> None:
        self._engine = engine
        spec = engine.spec
        self._decode_page = Page(spec.n_pages - 1)
        most = min(spec.max_context_tokens - 1, (spec.n_pages - 1) * spec.page_tokens)
        kinds = [kind for kind in mixed_kinds(usual, tall_rows=tall_rows) if kind.chunk <= most]
        self._todo: list[Callable[[], object]] = [
            *(partial(self._mixed, kind) for kind in kinds),
            *(partial(engine.capture, bucket) for bucket in usual.buckets),
            partial(self._decode, _ELABORATE),
        ]

    def __len__(self) -> int:
        return len(self._todo)

    def run(self) -> Iterator[None]:
        """One pass a turn; at the end, the pool is zeros as before."""
        for todo in self._todo:
            todo()
            yield
        self._engine.wipe()

    def _mixed(self, kind: PassKind) -> None:
        samples = kind.sampled > 0
        rows = [self._decode_row(i, _GREEDY, samples) for i in range(kind.decode)]
        pages = [Page(i) for i in range(-(-kind.chunk // self._engine.spec.page_tokens))]
        tokens = [0] * kind.chunk
        chunk = RowWork(kind.decode, tokens, 0, kind.chunk, pages, kind.chunk, _GREEDY, samples)
        self._check(self._engine.try_out([*rows, chunk]))

    def _decode(self, params: SamplingParams) -> None:
        self._check(self._engine.run([self._decode_row(0, params, True)]))

    def _decode_row(self, row: int, params: SamplingParams, samples: bool) -> RowWork:
        """The second token of an answer to a prompt of one. Such rows share a page, as nobody reads
        what they write."""
        return RowWork(row, [0, 0], 1, 1, [self._decode_page], 1, params, samples)

    @staticmethod
    def _check(results: list[RowResult]) -> None:
        errors = {result.error for result in results}
        assert errors <= {"", NOT_DRAWN}, errors  # weights may be nonsense; that is not for here
