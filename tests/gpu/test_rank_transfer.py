"""Sides of unequal numbers of ranks on cards, which they share where there are few.

Expected on one H200 or two: all pairs of 1, 2 and 4 ranks within 90 s, most of it kernels that are
built for the first time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
pytest.importorskip("grpc")
pytest.importorskip("xxhash")

from tests.engine.ranks.handing_over import DEGREES, carry, decode, kept, prefill, read, spoil
from twolane.engine.config import EngineConfig
from twolane.engine.cuda.driver import CudaError, open_memory
from twolane.engine.load import load_engine
from twolane.engine.ranks.group import RankGroup
from twolane.engine.step import Engine, Page
from twolane.engine.testing import write_random_model
from twolane.testing import start_local
from twolane.worker.cuda.memory import CudaMemory

pytestmark = pytest.mark.gpu

PROMPT = [(37 * i) % 250 + 3 for i in range(150)]
OWN, MOVED = [Page(p) for p in (7, 2, 5)], [Page(p) for p in (3, 9, 1)]
N_ANSWER = 8


@dataclass(frozen=True, slots=True)
class Side:
    engine: Engine
    memory: CudaMemory


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two key-value heads: with four ranks, two share each."""
    return write_random_model(tmp_path_factory.mktemp("m"), "llama", seed=1, hidden_size=128)


def load(model: Path, ranks: int) -> Engine:
    """Warm: it has read and answered something."""
    config = EngineConfig(
        model_dir=model, device="cuda", tensor_parallel=ranks, n_pages=16, exact=False,
        share_gpus=True,
    )  # fmt: skip
    engine = load_engine(config)
    decode(engine, PROMPT, OWN, prefill(engine, PROMPT, OWN), 2)
    return engine


def side_of(engine: Engine, ranks: int) -> Side:
    assert engine.device_pool is not None, "the ranks' pools could not be mapped"
    assert len(engine.device_pool.addresses) == ranks
    return Side(engine, CudaMemory(engine.device_pool, engine.spec.page_bytes))


@pytest.fixture(scope="module")
def sides(model_dir: Path, cards_of_module: None) -> Iterator[dict[int, Side]]:
    """By their number of ranks, loaded at once."""
    with ThreadPoolExecutor(len(DEGREES)) as threads:
        engines = dict(zip(DEGREES, threads.map(partial(load, model_dir), DEGREES), strict=True))
    yield {ranks: side_of(engine, ranks) for ranks, engine in engines.items()}
    for engine in engines.values():
        engine.close()


@pytest.mark.parametrize("transport", ["cuda_ipc", "unix"])
@pytest.mark.parametrize(("p", "d"), [*itertools.product(DEGREES, DEGREES)])
def test_pages_moved_are_those_that_the_other_sides_own_ranks_would_have_written(
    p: int, d: int, transport: str, sides: dict[int, Side]
) -> None:
    source, target = sides[p], sides[d]
    n = len(PROMPT)
    first = prefill(target.engine, PROMPT, OWN)
    expected = decode(target.engine, PROMPT, OWN, first, N_ANSWER)
    own = kept(target.engine, read(target.memory, OWN), n)
    first = prefill(source.engine, PROMPT, OWN)
    spoil(target.memory, MOVED)
    carry(
        source.engine, source.memory, OWN, target.engine, target.memory, MOVED,
        n_tokens=n, transport=transport,
    )  # fmt: skip
    assert np.abs(own).max() > 0.1
    assert kept(target.engine, read(target.memory, MOVED), n) == pytest.approx(own, abs=2e-4)
    assert decode(target.engine, PROMPT, MOVED, first, N_ANSWER) == expected


def test_the_pools_of_ranks_are_mapped_until_the_group_closes_and_gone_then(
    model_dir: Path,
) -> None:
    group = load(model_dir, 2)
    assert isinstance(group, RankGroup)
    pool = group.device_pool
    assert pool is not None
    assert len({*pool.addresses}) == len({*pool.exports}) == 2
    group.close()
    group.close()  # once more is fine
    with pytest.raises(CudaError):
        open_memory(pool.exports[1])


def test_workers_of_unequal_ranks_answer_what_one_card_answers(
    sides: dict[int, Side], model_dir: Path, tmp_path: Path
) -> None:
    """Across processes: the prefill worker maps the pools of the decode worker's ranks."""
    alone = sides[1].engine
    expected = decode(alone, PROMPT, OWN, prefill(alone, PROMPT, OWN), N_ANSWER)
    (tmp_path / "t.yaml").write_text(
        "share_gpus: true\n"
        "workers: {device: cuda, dtype: float32, kv_bytes: 100000000}\n"
        "pools: [{role: prefill, tensor_parallel: 2}, {role: decode, tensor_parallel: 4}]\n"
    )
    with (
        start_local(
            model_dir, topology=tmp_path / "t.yaml", launcher="process", start_timeout_s=300
        ) as cluster,
        cluster.client() as client,
    ):
        for _ in range(2):
            completion = client.generate(
                token_ids=PROMPT, temperature=0, max_tokens=N_ANSWER, ignore_eos=True
            )
            assert completion.token_ids == tuple(expected)
        transports = {w.worker_id: w.transports[0].transport for w in cluster.status().workers}
        assert transports == {"prefill-0": "cuda_ipc", "decode-0": "cuda_ipc"}
