"""A client's own id is a label. The router names each submission itself."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import grpc

from twolane.errors import CancelledError, DuplicateRequestError
from twolane.router.requests.request import Label
from twolane.router.router import Router
from twolane.router.testing.client import ask, client_of, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.served import serve_cluster
from twolane.v1 import inference_pb2_grpc, worker_pb2

PROMPT = [5, 6, 7, 8]


def assigns(cluster: ScriptedCluster, worker_id: str) -> list[worker_pb2.Assign]:
    commands = cluster.workers[worker_id].commands
    return [command.assign for command in commands if command.HasField("assign")]


def test_each_submission_has_a_name_of_its_own_under_one_label() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message(PROMPT, request_id="order-7", max_tokens=3)
        first, second = await ask(router, request), await ask(router, request)
        ids = {first.first.submission_id, second.first.submission_id}
        assert len(ids) == 2
        assert all(len(submission_id) == 32 for submission_id in ids)
        assert {outcome.first.request_id for outcome in (first, second)} == {"order-7"}
        for worker_id in ("p0", "d0"):
            told = assigns(cluster, worker_id)
            assert [assign.key.submission_id for assign in told] == [
                first.first.submission_id,
                second.first.submission_id,
            ]
            assert [assign.request_id for assign in told] == ["order-7", "order-7"]
            assert [assign.key.attempt for assign in told] == [1, 1]

    play(script)


def test_workers_get_the_claim_and_the_hash_of_the_clients_secret() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcomes = [await ask(router, message(PROMPT, max_tokens=3)) for _ in range(2)]
        for_p, for_d = assigns(cluster, "p0"), assigns(cluster, "d0")
        for outcome, at_p, at_d in zip(outcomes, for_p, for_d, strict=True):
            assert len(outcome.first.resume_token) == 16
            assert at_p.resume_hash == sha256(outcome.first.resume_token).digest()
            assert (at_p.claim, at_p.fence) == (at_d.claim, 0)
        assert for_p[0].claim != for_p[1].claim
        assert outcomes[0].first.resume_token != outcomes[1].first.resume_token

    play(script)


def test_two_tenants_may_use_one_id_at_the_same_time() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        requests = [message(PROMPT, request_id="same", max_tokens=30) for _ in range(2)]
        running = [
            asyncio.create_task(ask(router, request, caller=client_of(tenant)))
            for tenant, request in zip(("red", "blue"), requests, strict=True)
        ]
        await asyncio.sleep(0.1)
        assert {Label("red", "same"), Label("blue", "same")} == set(router._dispatcher.board.labels)
        assert not router.cancel("same"), "that is nobody's: it has no tenant"
        assert router.cancel("same", tenant="red")
        red, blue = await asyncio.gather(*running)
        assert isinstance(red.error, CancelledError)
        assert blue.tokens == expected_answer(PROMPT, 30)

    play(script)


def test_running_request_can_be_cancelled_by_the_name_that_the_router_drew() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        task = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=500)))
        await asyncio.sleep(0.1)
        (status,) = router.status().requests
        assert status.request_id == "x"
        assert len(status.submission_id) == 32
        assert router.cancel_submission(status.submission_id)
        outcome = await task
        assert isinstance(outcome.error, CancelledError)
        assert outcome.first.submission_id == status.submission_id
        assert not router.cancel_submission(status.submission_id)

    play(script)


def test_submission_of_another_tenant_is_as_unknown_as_one_that_never_was() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asked = ask(router, message(PROMPT, max_tokens=500), caller=client_of("red"))
        task = asyncio.create_task(asked)
        await asyncio.sleep(0.1)
        (status,) = router.status().requests
        for tenant in ("blue", ""):
            assert not router.cancel_submission(status.submission_id, tenant=tenant)
            assert not router.service_status([status.submission_id], tenant=tenant).submissions
        assert router.service_status([status.submission_id], tenant="red").submissions
        assert router.cancel_submission(status.submission_id, tenant="red")
        assert isinstance((await task).error, CancelledError)

    play(script)


def test_label_of_a_running_request_is_refused_and_the_running_one_goes_on() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        first = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=30)))
        await asyncio.sleep(0.1)
        started = asyncio.get_running_loop().time()
        second = await ask(router, message([9], request_id="x", max_tokens=3))
        assert isinstance(second.error, DuplicateRequestError)
        assert second.ended_at <= started + 0.05, "as good as at once"
        assert (await first).tokens == expected_answer(PROMPT, 30)

    play(script)


def test_hang_up_that_is_heard_after_the_next_request_still_leaves_that_its_label() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        left = message(PROMPT, request_id="x", max_tokens=500)
        hung_up = asyncio.create_task(ask(router, left))
        await asyncio.sleep(0.1)
        again = asyncio.create_task(ask(router, message([9], request_id="x", max_tokens=5)))
        await asyncio.sleep(0.01)
        hung_up.cancel()
        assert (await again).tokens == expected_answer([9], 5)

    play(script)


def test_label_is_free_the_moment_its_client_hangs_up() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for n_tokens in range(8):
            left = message(PROMPT, request_id="x", max_tokens=500)
            await ask(router, left, leave_after=n_tokens)
            again = await ask(router, message([9, n_tokens], request_id="x", max_tokens=5))
            assert again.error is None
            assert again.tokens == expected_answer([9, n_tokens], 5)
            assert again.ledger.attempts == 1

    play(script)


async def test_client_that_hangs_up_may_ask_again_at_once_under_its_id() -> None:
    async with (
        serve_cluster("p0", "d0") as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for n in range(8):
            left = stub.Generate(message([1] * 50, request_id="again", max_tokens=500))
            for _ in range(n % 4):
                await left.read()
            left.cancel()
            again = message([9, n], request_id="again", max_tokens=5)
            tokens = [token async for response in stub.Generate(again) for token in response.tokens]
            assert [token.token_id for token in tokens] == expected_answer([9, n], 5)
