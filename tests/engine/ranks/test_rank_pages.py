"""Pages of any number of ranks become pages of any other, as its own ranks would write them.

Real ranks, as processes on a CPU. The model has two key-value heads: two ranks split them, of four
two hold each.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.config import EngineConfig
from engine.load import load_engine
from engine.step import Engine, Page, RowWork, SampledToken
from kvtransfer.planes import Paging
from kvtransfer.sources import PageMaker
from twolane.layout import Layout, parse_layout, unfit
from twolane.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, top_logprobs=2)
PROMPT = [(37 * i) % 250 + 3 for i in range(55)]
N_TOKENS = 6
DEGREES = (1, 2, 4)
OWN, MOVED = [Page(p) for p in (7, 2, 5, 0)], [Page(p) for p in (3, 9, 1, 6)]
ModelDir = Callable[[str], Path]


@pytest.fixture(scope="module")
def engines(model_dir: ModelDir) -> Iterator[dict[int, Engine]]:
    """By their number of ranks. In float32: ranks add up in another order, and in no other way."""
    with ExitStack() as stack:
        made: dict[int, Engine] = {}
        for n in DEGREES:
            made[n] = load_engine(
                EngineConfig(
                    model_dir=model_dir("llama"), n_pages=12, device="cpu", tensor_parallel=n,
                    exact=False,
                )
            )  # fmt: skip
            stack.callback(made[n].close)
        yield made


def prefill(engine: Engine, pages: list[Page]) -> SampledToken:
    n = len(PROMPT)
    (result,) = engine.run([RowWork(0, PROMPT, 0, n, pages, n, GREEDY, True)])
    assert not result.error, result.error
    return result.tokens[0]


def decode(engine: Engine, pages: list[Page], first: SampledToken) -> list[int]:
    """The answer, its first token given."""
    tokens = [*PROMPT, first.token]
    while len(tokens) < len(PROMPT) + N_TOKENS:
        row = RowWork(0, tokens, len(tokens) - 1, 1, pages, len(PROMPT), GREEDY, True)
        (result,) = engine.run([row])
        assert not result.error, result.error
        tokens.append(result.tokens[0].token)
    return tokens[len(PROMPT) :]


def moved(source: Engine, target: Engine) -> None:
    """The prompt's pages of one, as an outlet makes and writes them, into pages of the other."""
    ours, theirs = (parse_layout(engine.spec.layout) for engine in (source, target))
    maker = PageMaker(source.pool, source.spec.layout)
    assert unfit(ours, theirs, maker.makes_dtypes) is None
    made = maker.source_for(target.spec.layout)
    paging = Paging(ours.page_tokens, theirs.page_tokens, theirs.page_bytes)
    n_pages = paging.n_pages(len(PROMPT))
    for i in range(n_pages):
        memory, (place,) = made.take(paging.sources(OWN, i, i + 1, len(PROMPT)))
        target.pool[MOVED[i]] = memory[place]


def kept(engine: Engine, pages: list[Page]) -> npt.NDArray[np.float32]:
    """What all ranks hold of the prompt: [its positions, all else]."""
    side: Layout = parse_layout(engine.spec.layout)
    held = engine.pool[pages].view(np.float32)
    shape = (len(pages), side.ranks * side.layers * 2 * side.kv_heads, side.page_tokens, -1)
    by_position = held.reshape(shape).swapaxes(1, 2)
    return by_position.reshape(len(pages) * side.page_tokens, -1)[: len(PROMPT)]


@pytest.mark.parametrize(("p", "d"), [*itertools.product(DEGREES, DEGREES)])
def test_pages_moved_are_those_that_the_other_sides_own_ranks_would_have_written(
    p: int, d: int, engines: dict[int, Engine]
) -> None:
    source, target = engines[p], engines[d]
    assert source.pool.shape == (12, source.spec.page_bytes)
    expected = decode(target, OWN, prefill(target, OWN))
    own = kept(target, OWN).copy()
    first = prefill(source, OWN)
    target.pool[MOVED] = 0xFF  # not a number, wherever it is read
    moved(source, target)
    assert np.abs(own).max() > 0.1
    assert kept(target, MOVED) == pytest.approx(own, abs=1e-4)
    assert decode(target, MOVED, first) == expected


def test_ranks_keep_their_pages_in_the_file_that_they_are_given(model_dir: ModelDir) -> None:
    config = EngineConfig(model_dir=model_dir("llama"), n_pages=8, device="cpu", tensor_parallel=2)
    fd = os.memfd_create("pool")
    try:
        os.posix_fallocate(fd, 0, 1 << 20)
        memory = np.frombuffer(mmap.mmap(fd, 1 << 20), np.uint8)
        engine = load_engine(config, pool_memory=memory.data, pool_fd=fd)
        try:
            assert engine.pool.ctypes.data == memory.ctypes.data
            prefill(engine, [Page(p) for p in range(4)])
            assert memory[: 4 * engine.spec.page_bytes].any()
        finally:
            engine.close()
    finally:
        os.close(fd)
