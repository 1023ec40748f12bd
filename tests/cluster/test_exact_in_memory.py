"""The real engine in exact mode, over the memory transport under virtual time: deaths anywhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from tests.cluster.exact_runner import lone_answer, probes
from tests.cluster.situations import Situation
from twolane import Token
from twolane.deploy.bundled import model_path
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.deploy.virtual_cluster.random_faults import kill_and_reset
from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.step import Engine, RowWork
from twolane.kvtransfer.testing.memory import Faults
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2
from twolane.worker.steps.step_runner import TimedEngine


class TimedCpuEngine:
    """The CPU engine, with a made-up time for a step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.spec = engine.spec
        self.pool = engine.pool
        self.device_pool = engine.device_pool
        self.steps_ahead = engine.steps_ahead
        self.only_launches = engine.only_launches
        self.submit = engine.submit
        self.run = engine.run
        self.close = engine.close

    def step_time_s(self, work: Sequence[RowWork]) -> float:
        return 0.002 + 0.0001 * sum(row.n_new for row in work)


def make_engine(n_pages: int) -> TimedEngine:
    config = EngineConfig(
        model_dir=model_path(), exact=True, threads=1, n_pages=n_pages, page_tokens=16
    )
    return TimedCpuEngine(load_engine(config))


N_TOKENS = 48  # answers are so long that workers die twice meanwhile
COLOCATED, SPLIT = ("pd", "pd"), ("p", "p", "d", "d")
# Every two values meet; all three together are for `make soak`.
PAIRWISE = {(COLOCATED, 40, "greedy"), (COLOCATED, 300, "seeded"),
            (SPLIT, 40, "seeded"), (SPLIT, 300, "greedy")}  # fmt: skip
CASES = [
    pytest.param(
        *values,
        id=f"{''.join(values[0])}-{values[1]}-{values[2]}",
        marks=[] if values in PAIRWISE else pytest.mark.soak,
    )
    for values in itertools.product((COLOCATED, SPLIT), (40, 300), ("greedy", "seeded"))
]


@pytest.mark.parametrize(("roles", "chunk_tokens", "sampling"), CASES)
def test_bits_survive_faulty_memory_transfers_and_deaths_at_any_moment(
    roles: tuple[str, ...], chunk_tokens: int, sampling: str
) -> None:
    situation = Situation("float32", "memory", chunk_tokens, "any", "any", "crowd", sampling)
    asked = [probe for turn in range(3) for probe in probes(situation, turn, N_TOKENS)]

    async def main() -> None:
        async with virtual_cluster(shape, seed=chunk_tokens) as cluster:
            faults = asyncio.create_task(kill_and_reset(cluster))
            async with asyncio.TaskGroup() as clients:
                answers = [clients.create_task(cluster.ask(p.prompt, p.params)) for p in asked]
            faults.cancel()
            check(cluster, [task.result() for task in answers])
            await cluster.settle(within_s=10.0)

    def check(cluster: VirtualCluster, answers: list[list[inference_pb2.Token]]) -> None:
        assert cluster.kills >= 2
        for probe, answer in zip(asked, answers, strict=True):
            assert [Token.from_proto(token) for token in answer] == list(
                lone_answer("float32", probe)
            )

    shape = Shape(
        roles=roles,
        n_pages=160,
        make_engine=make_engine,
        step_tokens=chunk_tokens,
        transfer_faults=Faults(drop=0.002, duplicate=0.01, corrupt=0.002, delay_s=(0.0, 0.02)),
    )
    with virtual_time_runner() as runner:
        runner.run(main())
