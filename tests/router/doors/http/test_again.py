"""A call for an answer that an earlier one was given in part, or was not given yet."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from tests.router.http.asking import CHAT_PATH, PATH, http_cluster
from twolane.router.config import DispatchConfig, RouterConfig, ServerConfig
from twolane.router.doors.server import RouterServer
from twolane.router.testing.served import SETTLED
from twolane.router.text.codec import TextCodec
from twolane.v1 import worker_pb2

TEXT = "naïve café, 日本語のテキスト, Ελληνικά, 🙂🙃: once upon a time there was a fox. "
# A machine that stalls does not keep a router from finding a row.
PATIENT = RouterConfig(dispatch=DispatchConfig(find_wait_s=60.0), membership=SETTLED)
SLOW: dict[str, Any] = {"config": PATIENT, "step_s": 0.02}
ECHO: dict[str, Any] = {"config": PATIENT, "echoes": True, "step_s": 0.005}
IDS: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 40, "temperature": 0}
WANTED = {"x-twolane-resume": "yes"}


class Stream:
    """What a client keeps of a stream: the data of its events, and the last id."""

    def __init__(self) -> None:
        self.name = self.place = ""
        self.events: list[str] = []

    async def read(
        self, client: httpx2.AsyncClient, fields: dict[str, Any], path: str, most: int = 1_000
    ) -> None:
        """Up to so many events of it."""
        headers = dict(WANTED)
        if self.name:
            headers |= {"x-twolane-resume": self.name, "last-event-id": self.place}
        asked = {**fields, "stream": True}
        async with client.stream("POST", path, json=asked, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            self.name = response.headers["x-twolane-resume"]
            n_events = 0
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    self.place = line.removeprefix("id: ")
                elif line:
                    self.events.append(line.removeprefix("data: "))
                    n_events += 1
                if n_events == most:
                    return

    def choices(self) -> list[Any]:
        chunks = [json.loads(event) for event in self.events if event != "[DONE]"]
        return [chunk["choices"][0] for chunk in chunks if chunk["choices"]]


def texts(stream: Stream) -> str:
    return "".join(choice["text"] for choice in stream.choices())


@pytest.mark.parametrize("n_events", [5, 11])
async def test_stream_that_broke_goes_on_behind_its_last_event(
    n_events: int, codec: TextCodec
) -> None:
    fields = {"prompt": TEXT, "max_tokens": 40, "temperature": 0}
    fields |= {"return_token_ids": True, "stream_options": {"include_usage": True}}
    async with http_cluster(text=codec, **ECHO) as (client, server, _):
        undisturbed, broken = Stream(), Stream()
        await undisturbed.read(client, fields, PATH)
        n_reads = 0
        while "[DONE]" not in broken.events:
            await broken.read(client, fields, PATH, most=n_events)
            n_reads += 1
        assert n_reads > 1
        assert texts(broken) == texts(undisturbed)
        ids = [
            [token for choice in stream.choices() for token in choice["token_ids"]]
            for stream in (undisturbed, broken)
        ]
        assert ids[0] == ids[1]
        assert json.loads(broken.events[-2])["usage"] == json.loads(undisturbed.events[-2])["usage"]
        assert broken.events[-1] == "[DONE]"
        assert len({json.loads(event)["id"] for event in broken.events[:-1]}) == 1
        counters = server.router.status().counters
        assert counters["adopted"] == n_reads - 1
        assert not [name for name in counters if name.startswith("resumes")]


async def test_chat_that_goes_on_says_its_role_once(codec: TextCodec) -> None:
    fields = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 30, "temperature": 0}
    async with http_cluster(text=codec, **ECHO) as (client, _, _):
        undisturbed, broken = Stream(), Stream()
        await undisturbed.read(client, fields, CHAT_PATH)
        await broken.read(client, fields, CHAT_PATH, most=4)
        await broken.read(client, fields, CHAT_PATH)
        said = [
            "".join(choice["delta"].get("content", "") for choice in stream.choices())
            for stream in (undisturbed, broken)
        ]
        assert said[0] == said[1]
        assert [choice["delta"].get("role") for choice in broken.choices()].count("assistant") == 1


async def test_whole_answer_of_a_stream_is_there_for_who_has_lost_it_all() -> None:
    async with http_cluster(**SLOW) as (client, _, _):
        fields = {**IDS, "return_token_ids": True}
        expected = (await client.post(PATH, json=fields)).json()["choices"]
        broken = Stream()
        await broken.read(client, fields, PATH, most=5)
        headers = {"x-twolane-resume": broken.name}
        whole = await client.post(PATH, json=fields, headers=headers)
        assert whole.json()["choices"] == expected


async def test_rows_of_a_client_that_does_not_come_back_are_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twolane.router.router.KEPT_S", 0.3)
    async with http_cluster(**SLOW) as (client, server, cluster):
        broken = Stream()
        await broken.read(client, {**IDS, "max_tokens": 1_900}, PATH, most=3)
        async with asyncio.timeout(30.0):
            while any(worker.rows for worker in cluster.workers.values()):
                await asyncio.sleep(0.01)
        assert not server.router.status().requests


@pytest.mark.parametrize(
    ("headers", "fields", "param"),
    [
        ({"x-twolane-resume": "no"}, {}, "x-twolane-resume"),
        ({"x-twolane-resume": f"{'0' * 32}:{'x' * 32}"}, {}, "x-twolane-resume"),
        (
            {"x-twolane-resume": f"{'0' * 32}:{'0' * 32}", "last-event-id": "7"},
            {},
            "last-event-id",
        ),
        ({"x-twolane-resume": "yes"}, {"prompt": [[1], [2]]}, "x-twolane-resume"),
        ({"idempotency-key": "x" * 65}, {}, "idempotency-key"),
    ],
)
async def test_what_cannot_go_on_is_refused_by_header(
    headers: dict[str, str], fields: dict[str, Any], param: str
) -> None:
    async with http_cluster() as (client, _, _):
        response = await client.post(PATH, json={**IDS, **fields}, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_an_answer_that_nobody_has_is_unknown() -> None:
    unknown = {"x-twolane-resume": f"{'0' * 32}:{'0' * 32}"}
    async with http_cluster() as (client, _, _):
        assert (await client.post(PATH, json=IDS, headers=unknown)).status_code == 404


async def running(server: RouterServer) -> None:
    while not any(request.output_tokens for request in server.router.status().requests):
        await asyncio.sleep(0.005)


RETRIES = [
    {"idempotency-key": "mine"},
    {"idempotency-key": "mine", "x-request-id": "a gateway's"},
    {"x-request-id": "mine", "x-stainless-retry-count": "1"},
]


@pytest.mark.parametrize("headers", RETRIES)
async def test_retry_of_a_running_call_takes_it_over_and_costs_nothing(
    headers: dict[str, str],
) -> None:
    async with http_cluster(**SLOW) as (client, server, _):
        fields = {**IDS, "return_token_ids": True}
        expected = (await client.post(PATH, json=fields)).json()["choices"]
        began = {**headers, "x-stainless-retry-count": "0"}
        first = asyncio.create_task(client.post(PATH, json=fields, headers=began))
        await running(server)
        again = await client.post(PATH, json=fields, headers=headers)
        assert again.json()["choices"] == expected
        assert (await first).status_code == 409
        counters = server.router.status().counters
        assert not [name for name in counters if name.startswith("resumes")]
        assert counters["adopted"] == 1
        (tenant,) = server.router._dispatcher.board.accounts
        assert tenant.counters["requests"] == 2


async def test_a_call_that_was_taken_over_ends_with_an_error_event_when_its_router_stops() -> None:
    """Its client cannot be told to continue at another router."""
    place = ServerConfig(stop_grace_s=1.0, metrics_port=None)
    async with http_cluster(server_config=place, **SLOW) as (client, server, _):
        fields = {**IDS, "max_tokens": 1_900, "stream": True}
        headers = {"idempotency-key": "mine"}
        first = asyncio.create_task(client.post(PATH, json=fields, headers=headers))
        await running(server)
        async with client.stream("POST", PATH, json=fields, headers=headers) as response:
            lines = (line async for line in response.aiter_lines() if line)
            await anext(lines)
            await first
            other = worker_pb2.RouterAddress(router_id="router-1", grpc_endpoint="there:7200")
            server.router.known.hear([other], asyncio.get_running_loop().time())
            stopping = asyncio.create_task(server.__aexit__(None, None, None))
            events = [json.loads(line.removeprefix("data: ")) async for line in lines]
        assert "stopping" in events[-1]["error"]["message"]
        await stopping


async def test_same_key_with_another_body_is_refused_while_the_first_runs() -> None:
    async with http_cluster(**SLOW) as (client, server, _):
        headers = {"idempotency-key": "mine"}
        first = asyncio.create_task(client.post(PATH, json=IDS, headers=headers))
        await running(server)
        other = await client.post(PATH, json={**IDS, "max_tokens": 7}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "duplicate_request")
        assert (await first).status_code == 200
        assert (await client.post(PATH, json=IDS, headers=headers)).json()["usage"]


async def test_streams_that_do_not_ask_for_ids_have_none() -> None:
    async with http_cluster() as (client, _, _):
        response = await client.post(PATH, json={**IDS, "stream": True})
        assert "x-twolane-resume" not in response.headers
        assert not [line for line in response.text.splitlines() if line.startswith("id:")]
