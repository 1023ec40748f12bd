"""A worker of either role answers alone for a check, one prompt at a time, in what is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twolane.deploy.virtual_cluster.cluster import Shape, virtual_cluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.errors import (
    InvalidParameterError,
    InvalidRequestError,
    OverloadedError,
    PreconditionError,
)
from twolane.params import SamplingParams
from twolane.router.operators.comparison import sampling
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import facts_pb2
from twolane.worker.worker import Worker

PROMPT = [7, 1, 3] * 20


def asked(max_tokens: int = 9, **fields: Any) -> facts_pb2.AnswerAloneRequest:
    fields = {"token_ids": PROMPT, **fields}
    return facts_pb2.AnswerAloneRequest(sampling=sampling(max_tokens), **fields)


async def tokens(worker: Worker, request: facts_pb2.AnswerAloneRequest) -> list[int]:
    return [sampled.token for sampled in await worker.answer_alone(request)]


def test_both_roles_answer_alone_beside_their_rows_and_hold_nothing_afterwards() -> None:
    async def main() -> None:
        async with virtual_cluster(Shape(n_pages=64)) as cluster:
            params = SamplingParams(max_tokens=40, seed=0)
            clients = [
                asyncio.create_task(cluster.ask([n + 1] * 50, params, request_id=f"r{n}"))
                for n in range(4)
            ]
            workers = [life.worker for life in cluster.lives.values()]
            expected = expected_answer(
                PROMPT,
                SamplingParams(seed=0, ignore_eos=True),
                9,
                config=FakeEngineConfig(n_pages=64),
            )
            for worker in workers:
                answers = [await tokens(worker, asked()) for _ in range(2)]
                assert answers == [expected] * 2
            for n, client in enumerate(clients):
                assert len(await client) == 40, n
            await cluster.settle(within_s=10.0)
            for worker in workers:
                assert worker.roles.check is None

    with virtual_time_runner() as runner:
        runner.run(main())


def test_it_waits_for_pages_that_nobody_is_promised_and_a_call_that_ends_leaves_none() -> None:
    async def main() -> None:
        async with virtual_cluster(Shape(n_pages=8)) as cluster:
            worker = cluster.lives["d1"].worker
            row = asyncio.create_task(
                cluster.ask([1] * 60, SamplingParams(max_tokens=60, seed=0))
            )  # all 8 pages, in the end
            while worker.load().rows == 0:
                await asyncio.sleep(0.001)
            waiting = asyncio.create_task(worker.answer_alone(asked()))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            with pytest.raises(OverloadedError, match="another check"):
                await worker.answer_alone(asked())
            waiting.cancel()
            await asyncio.wait([waiting])
            assert len(await row) == 60
            assert len(await tokens(worker, asked())) == 9
            await cluster.settle(within_s=10.0)

    with virtual_time_runner() as runner:
        runner.run(main())


def test_what_it_cannot_answer_is_refused() -> None:
    async def main() -> None:
        async with virtual_cluster(Shape(n_pages=8)) as cluster:
            worker = cluster.lives["p0"].worker
            for request, error in (
                (asked(expect_epoch=1), PreconditionError),
                (asked(max_tokens=100), InvalidParameterError),
                (asked(token_ids=[]), InvalidRequestError),
                (asked(token_ids=[256]), InvalidRequestError),
            ):
                with pytest.raises(error):
                    await worker.answer_alone(request)
            worker.drain()
            with pytest.raises(PreconditionError, match="drains"):
                await worker.answer_alone(asked())

    with virtual_time_runner() as runner:
        runner.run(main())
