"""Runs a pass of every expected kind once before the first request: captures graphs, and loads what
libraries load on first use.

All ranks must run the same passes in the same order, however long they take: so a list bounds them,
not a clock.
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
# Everything that the sampler's kernel leaves to the library.
_ELABORATE = SamplingParams(
    temperature=1.0, top_k=8, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1,
    presence_penalty=0.1, logit_bias={0: 1.0}, top_logprobs=1, seed=1,
)  # fmt: skip


class WarmupPasses:
    """The passes of one engine that is not in use yet. Longest first, since later ones then fit in
    the memory of earlier ones; passes too large for this pool are left out."""

    def __init__(
        self, engine: CudaEngine, expected: StepShapes, *, many_rows_from: int | None
    ) -> None:
        self._engine = engine
        spec = engine.spec
        self._decode_page = Page(spec.n_pages - 1)
        most = min(spec.max_context_tokens - 1, (spec.n_pages - 1) * spec.page_tokens)
        kinds = [
            kind
            for kind in mixed_kinds(expected, many_rows_from=many_rows_from)
            if kind.chunk <= most
        ]
        self._todo: list[Callable[[], object]] = [
            *(partial(self._mixed, kind) for kind in kinds),
            *(
                partial(engine.capture_prompts, bucket)
                for bucket in expected.prompt_buckets(exact=spec.exact)
            ),
            *(partial(engine.capture, bucket) for bucket in expected.buckets),
            partial(self._decode, _ELABORATE),
        ]

    def __len__(self) -> int:
        return len(self._todo)

    def run(self) -> Iterator[None]:
        """One pass per iteration; at the end the pool is zeroed again."""
        for todo in self._todo:
            todo()
            yield
        self._engine.zero_pool()

    def _mixed(self, kind: PassKind) -> None:
        samples = kind.sampled > 0
        rows = [self._decode_row(i, _GREEDY, samples) for i in range(kind.decode)]
        pages = [Page(i) for i in range(-(-kind.chunk // self._engine.spec.page_tokens))]
        tokens = [0] * kind.chunk
        chunk = RowWork(kind.decode, tokens, 0, kind.chunk, pages, kind.chunk, _GREEDY, samples)
        self._check(self._engine.run_few_layers([*rows, chunk]))

    def _decode(self, params: SamplingParams) -> None:
        self._check(self._engine.run([self._decode_row(0, params, True)]))

    def _decode_row(self, row: int, params: SamplingParams, samples: bool) -> RowWork:
        """The second token of an answer to a one-token prompt. Such rows share a page, since
        nothing reads what they write."""
        return RowWork(row, [0, 0], 1, 1, [self._decode_page], 1, params, samples)

    @staticmethod
    def _check(results: list[RowResult]) -> None:
        errors = {result.error for result in results}
        assert errors <= {"", NOT_DRAWN}, errors  # random weights may give non-finite logits
