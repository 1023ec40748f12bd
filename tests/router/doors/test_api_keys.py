"""Who may come in at the clients' doors, and whose requests are whose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import openai
import pytest
from prometheus_client import generate_latest

from tests.router.http.raw import connect
from twolane.aclient import AsyncClient
from twolane.client import Client
from twolane.config import ClientConfig
from twolane.errors import QuotaError, TwolaneError, UnauthenticatedError
from twolane.router.doors.server import RouterServer
from twolane.router.testing.client import message
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.served import serve_cluster
from twolane.rpc.errors import from_rpc_error
from twolane.security.key_edit import create_key, revoke_key
from twolane.security.key_file import KeyFile
from twolane.v1 import inference_pb2, inference_pb2_grpc

WRONG = "tl_000000000000_wrong"
BODY: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 3}


@dataclass
class Doors:
    """A router that asks for keys; `red` and `blue` are keys of two tenants of those names."""

    server: RouterServer
    cluster: ScriptedCluster
    keys: Path
    red: str
    blue: str

    def client(self, key: str | None) -> AsyncClient:
        return AsyncClient(self.server.address, config=ClientConfig(api_key=key))

    async def http(self, path: str, key: str | None, **fields: Any) -> httpx2.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(
            base_url=f"http://{self.server.http_address}", timeout=30.0
        ) as client:
            if fields:
                return await client.post(path, json=fields, headers=headers)
            return await client.get(path, headers=headers)


@asynccontextmanager
async def doors(tmp_path: Path, **knobs: Any) -> AsyncIterator[Doors]:
    keys = tmp_path / "keys.yaml"
    red, blue = (create_key(keys, tenant)[0] for tenant in ("red", "blue"))
    async with serve_cluster("p0", "d0", keys=KeyFile(keys), **knobs) as (server, cluster):
        yield Doors(server, cluster, keys, red, blue)


async def first_of(client: AsyncClient, method: str, request: Any) -> object:
    """The first message of a stream, or why there is none, as long as that is not the caller."""
    door = client._doors.all[0]
    call = getattr(door.inference, method)(request, metadata=door.target.metadata)
    try:
        return await call.read()
    except grpc.RpcError as error:
        failed = from_rpc_error(error)
        if isinstance(failed, UnauthenticatedError):
            raise failed from None
        return failed


CALLS: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "Generate": lambda client: first_of(client, "Generate", message([1], max_tokens=2)),
    "Resume": lambda client: first_of(client, "Resume", inference_pb2.ResumeRequest()),
    "Multiplex": lambda client: client.generate(token_ids=[1], max_tokens=2),
    "Cancel": lambda client: client.cancel("nobody"),
    "ListModels": lambda client: client.models(),
    "GetStatus": lambda client: client.status(),
    "WhoAmI": lambda client: client.who_am_i(),
}


def test_every_method_of_the_clients_service_is_tried_here() -> None:
    service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    assert {method.name for method in service.methods} == {*CALLS, "Resume"}


async def test_every_call_over_grpc_needs_a_valid_key_and_the_refusal_says_what_to_do(
    tmp_path: Path,
) -> None:
    async with doors(tmp_path) as at:
        for name, call in CALLS.items():
            for key, said in ((None, "TWOLANE_API_KEY"), (WRONG, "create-key")):
                async with at.client(key) as client:
                    with pytest.raises(UnauthenticatedError, match=said):
                        await call(client)
            async with at.client(at.red) as client:
                assert await call(client) is not None, name


async def test_resume_needs_a_valid_key_and_finds_no_answer_of_another_tenant(
    tmp_path: Path,
) -> None:
    generate = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[1]))
    generate.sampling.max_tokens = 100
    async with doors(tmp_path) as at, grpc.aio.insecure_channel(at.server.address) as channel:
        door = inference_pb2_grpc.InferenceServiceStub(channel)
        running = door.Generate(generate, metadata=[("authorization", f"Bearer {at.red}")])
        first = await running.read()
        wanted = inference_pb2.ResumeRequest(
            submission_id=first.submission_id, resume_token=first.resume_token, takeover=1
        )
        for key, code in ((WRONG, "UNAUTHENTICATED"), (at.blue, "NOT_FOUND")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await door.Resume(wanted, metadata=[("authorization", f"Bearer {key}")]).read()
            assert caught.value.code().name == code
        while (await running.read()) is not grpc.aio.EOF:
            pass
        assert await running.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/models"])
async def test_every_call_over_http_needs_a_valid_key(tmp_path: Path, path: str) -> None:
    async with doors(tmp_path) as at:
        fields = {} if path.endswith("models") else BODY
        for key in (None, WRONG, at.red[:-1]):
            answer = await at.http(path, key, **fields)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["code"] == "invalid_api_key"
            assert "API key" in error["message"]
        if path.endswith("completions") and "chat" not in path:
            assert (await at.http(path, at.red, **fields)).status_code == 200
        async with asyncio.timeout(30.0):
            while (await at.http("/health", None)).status_code != 200:  # its workers still announce
                await asyncio.sleep(0.01)


async def test_body_of_a_caller_without_a_key_is_not_waited_for(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Content-Length: 4000000\r\n\r\n"
        )
        raw = await connect(at.server)
        raw.send(head.encode())
        status, body = await raw.answer()
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        raw.close()


async def test_caller_is_told_who_it_is(tmp_path: Path) -> None:
    async with doors(tmp_path) as at, at.client(at.red) as client:
        caller = await client.who_am_i()
        assert (caller.role, caller.tenant) == ("client", "red")
        assert at.red.startswith(f"tl_{caller.name}_")


async def test_door_without_keys_takes_everybody_as_nobody_in_particular() -> None:
    async with serve_cluster("p0", "d0") as (server, _):
        async with AsyncClient(server.address) as client:
            caller = await client.who_am_i()
        assert (caller.role, caller.name, caller.tenant) == ("client", "", "")
        async with AsyncClient(
            server.address, config=ClientConfig(api_key="tl_not_asked_for")
        ) as client:
            assert (await client.generate(token_ids=[1], max_tokens=2)).token_ids


async def test_new_key_counts_and_a_revoked_one_does_not_without_a_restart(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        green, key = create_key(at.keys, "green")
        async with at.client(green) as client:
            assert (await until_known(client)).tenant == "green"
            revoke_key(at.keys, key.id)
            with pytest.raises(UnauthenticatedError, match="revoked"):
                await until_refused(client)


async def until_refused(client: AsyncClient) -> None:
    async with asyncio.timeout(30.0):
        while True:
            await client.who_am_i()
            await asyncio.sleep(0.05)


async def until_known(client: AsyncClient) -> Any:
    async with asyncio.timeout(30.0):
        while True:
            try:
                return await client.who_am_i()
            except UnauthenticatedError:
                await asyncio.sleep(0.05)


async def test_tenant_in_a_request_may_not_differ_from_the_keys(tmp_path: Path) -> None:
    async with (
        doors(tmp_path) as at,
        grpc.aio.insecure_channel(at.server.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        shown = (("authorization", f"Bearer {at.red}"),)
        request = message([1], max_tokens=2)
        request.tenant = "red"
        assert [response async for response in stub.Generate(request, metadata=shown)]
        request.tenant = "blue"
        with pytest.raises(grpc.aio.AioRpcError, match="leave the field unset") as raised:
            await stub.Generate(request, metadata=shown).read()
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        cancel = inference_pb2.CancelRequest(request_id="x", tenant="blue")
        with pytest.raises(grpc.aio.AioRpcError, match="leave the field unset"):
            await stub.Cancel(cancel, metadata=shown)


async def test_tenant_neither_sees_nor_ends_the_requests_of_another(tmp_path: Path) -> None:
    async with (
        doors(tmp_path, step_s=0.02) as at,
        at.client(at.red) as red,
        at.client(at.blue) as blue,
        grpc.aio.insecure_channel(at.server.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        of_red, of_blue = ((("authorization", f"Bearer {key}"),) for key in (at.red, at.blue))
        asked = message([1], request_id="x", max_tokens=900)
        answer_of_red = aiter(stub.Generate(asked, metadata=of_red))
        first = await anext(answer_of_red)
        named = inference_pb2.CancelRequest(submission_id=first.submission_id)
        labelled = inference_pb2.CancelRequest(request_id="x")
        never = inference_pb2.CancelRequest(submission_id="0" * 32)
        for request in (named, labelled, never):
            answer = await stub.Cancel(request, metadata=of_blue)
            assert answer == inference_pb2.CancelResponse(found=False)
        assert not (await blue.status([first.submission_id])).submissions
        (submission,) = (await red.status([first.submission_id])).submissions
        assert submission.submission_id == first.submission_id
        async with blue.stream(token_ids=[2], request_id="x", max_tokens=2) as own:
            assert (await own.completion()).token_ids, "a label is a tenant's own"
        assert await red.cancel("x")
        with pytest.raises(grpc.aio.AioRpcError, match="cancelled by its id"):
            _ = [response async for response in answer_of_red]


async def test_workers_are_told_the_tenant_of_the_key(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        async with at.client(at.red) as red, at.client(at.blue) as blue:
            await red.generate(token_ids=[1] * 100, max_tokens=2)
            await blue.generate(token_ids=[1] * 100, max_tokens=2)
        assert (await at.http("/v1/completions", at.blue, **BODY)).status_code == 200
        for worker in at.cluster.workers.values():
            told = [c.assign.tenant for c in worker.commands if c.HasField("assign")]
            assert told == ["red", "blue", "blue"]


async def test_key_of_the_environment_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with doors(tmp_path) as at:
        monkeypatch.setenv("TWOLANE_API_KEY", at.blue)

        def ask() -> str:
            with Client(at.server.address) as client:
                return client.who_am_i().tenant

        assert await asyncio.to_thread(ask) == "blue"


def test_key_that_cannot_be_sent_is_refused_and_not_repeated() -> None:
    for key in ("tl_a_b\n", "tl_a_ß", 7):
        with pytest.raises(TwolaneError) as raised:
            ClientConfig(api_key=key)  # type: ignore[arg-type]
        assert str(key) not in str(raised.value)
    assert "tl_a_b" not in repr(ClientConfig(api_key="tl_a_b"))


async def test_running_answer_ends_when_its_key_is_revoked(tmp_path: Path) -> None:
    async with doors(tmp_path, step_s=0.02) as at, at.client(at.blue) as blue:
        async with at.client(at.red) as red, red.stream(token_ids=[1], max_tokens=1900) as answer:
            await anext(answer)
            revoke_key(at.keys, at.red.split("_")[1])
            with pytest.raises(UnauthenticatedError, match="is not valid any more"):
                await answer.completion()
        assert (await blue.who_am_i()).tenant == "blue"


async def test_http_tells_what_is_left_of_the_quotas_as_openai_does(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        limits = {"requests_per_s": 0.01, "tokens_per_min": 6000}
        green, _ = create_key(at.keys, "green", limits=limits)
        async with at.client(green) as client:
            await until_known(client)
        first = await at.http("/v1/completions", green, **BODY)
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-tokens"] == "6000"
        assert first.headers["x-ratelimit-remaining-tokens"] in {"5995", "5996", "5997", "6000"}
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        assert first.headers["x-ratelimit-reset-requests"].startswith("1m")
        second = await at.http("/v1/completions", green, **BODY)
        assert second.status_code == 429
        assert 90 < int(second.headers["retry-after"]) <= 100
        assert second.headers["x-ratelimit-remaining-requests"] == "0"
        error = second.json()["error"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        other = await at.http("/v1/completions", at.red, **BODY)
        assert other.status_code == 200
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]
        async with at.client(green) as client:
            quotas = {quota.name: quota for quota in (await client.who_am_i()).quotas}
            assert quotas["tokens"].limit == 6000
            assert quotas["requests"].remaining < 1
            with pytest.raises(QuotaError) as raised:
                await client.generate(token_ids=[1], max_tokens=1)
            assert 90 < raised.value.retry_after_s <= 100


async def test_operators_see_tenants_and_metrics_show_only_hashes(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        async with at.client(at.red) as red:
            await red.generate(token_ids=[1] * 7, max_tokens=3)
        status = at.server.router.status()
        (tenant,) = status.tenants
        assert (tenant.tenant, tenant.live, tenant.requests) == ("red", 0, 1)
        assert (tenant.prompt_tokens, tenant.output_tokens) == (7, 3)
        page = generate_latest(at.server.metrics.registry).decode()
        assert f'twolane_router_tenant_output_tokens_total{{tenant="{tenant.label}"}} 3.0' in page
        assert '"red"' not in page


async def test_openais_client_knows_these_errors_for_what_they_are(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        green, _ = create_key(at.keys, "green", limits={"requests_per_s": 0.01})
        async with at.client(green) as client:
            await until_known(client)
        base_url = f"http://{at.server.http_address}/v1"
        async with openai.AsyncOpenAI(api_key=WRONG, base_url=base_url, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="create-key"):
                await client.completions.create(model="", **BODY)
        async with openai.AsyncOpenAI(api_key=green, base_url=base_url, max_retries=0) as client:
            assert (await client.completions.create(model="", **BODY)).choices
            with pytest.raises(openai.RateLimitError) as raised:
                await client.completions.create(model="", **BODY)
        assert raised.value.code == "rate_limit_exceeded"
