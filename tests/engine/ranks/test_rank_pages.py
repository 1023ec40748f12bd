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
import pytest

from tests.engine.ranks.handing_over import DEGREES, carry, decode, kept, prefill, read, spoil
from twolane.engine.config import EngineConfig
from twolane.engine.load import load_engine
from twolane.engine.step import Engine, Page

PROMPT = [(37 * i) % 250 + 3 for i in range(55)]
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


@pytest.mark.parametrize(("p", "d"), [*itertools.product(DEGREES, DEGREES)])
def test_pages_moved_are_those_that_the_other_sides_own_ranks_would_have_written(
    p: int, d: int, engines: dict[int, Engine]
) -> None:
    source, target = engines[p], engines[d]
    n = len(PROMPT)
    assert source.pool.shape == (12, source.spec.page_bytes)
    expected = decode(target, PROMPT, OWN, prefill(target, PROMPT, OWN), 6)
    own = kept(target, read(target.pool, OWN), n)
    first = prefill(source, PROMPT, OWN)
    spoil(target.pool, MOVED)
    carry(source, source.pool, OWN, target, target.pool, MOVED, n_tokens=n, transport="unix")
    assert np.abs(own).max() > 0.1
    assert kept(target, read(target.pool, MOVED), n) == pytest.approx(own, abs=1e-4)
    assert decode(target, PROMPT, MOVED, first, 6) == expected


def test_ranks_keep_their_pages_in_the_file_that_they_are_given(model_dir: ModelDir) -> None:
    config = EngineConfig(model_dir=model_dir("llama"), n_pages=8, device="cpu", tensor_parallel=2)
    fd = os.memfd_create("pool")
    try:
        os.posix_fallocate(fd, 0, 1 << 20)
        memory = np.frombuffer(mmap.mmap(fd, 1 << 20), np.uint8)
        engine = load_engine(config, pool_memory=memory.data, pool_fd=fd)
        try:
            assert engine.pool.ctypes.data == memory.ctypes.data
            prefill(engine, PROMPT, [Page(p) for p in range(4)])
            assert memory[: 4 * engine.spec.page_bytes].any()
        finally:
            engine.close()
    finally:
        os.close(fd)
