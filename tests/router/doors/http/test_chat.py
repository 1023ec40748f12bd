"""Chat over HTTP is the router's chat, whole or as it comes."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.router.http.asking import CHAT_PATH, PATH, chat_events, decoded, http_cluster
from twolane.router.config import HttpConfig, LimitsConfig, RouterConfig, ServerConfig
from twolane.router.doors.http.chat_request import ChatRequest, Message
from twolane.router.doors.http.choices.chat import ChatMessage
from twolane.router.doors.http.request import StreamOptions
from twolane.router.requests.piece import Piece
from twolane.router.testing.client import ask
from twolane.router.text.codec import TextCodec
from twolane.v1 import inference_pb2, sampling_pb2

HELLO = {"role": "user", "content": "hello"}
ASKED: dict[str, Any] = {"messages": [HELLO], "max_tokens": 30, "seed": 7}
LENGTH = sampling_pb2.FINISH_REASON_LENGTH


def grpc_chat(**sampling: Any) -> inference_pb2.GenerateRequest:
    said = inference_pb2.ChatMessage(**HELLO)
    return inference_pb2.GenerateRequest(
        chat=inference_pb2.Chat(messages=[said]), sampling=sampling_pb2.SamplingParams(**sampling)
    )


async def test_a_whole_answer_has_openais_shape_and_grpcs_text(codec: TextCodec) -> None:
    async with http_cluster(text=codec) as (client, server, _):
        expected = await ask(server.router, grpc_chat(max_tokens=30, seed=7))
        before = int(time.time())
        response = await client.post(CHAT_PATH, json={**ASKED, "return_token_ids": True})
        answer = response.json()
        assert answer.pop("id") == f"chatcmpl-{response.headers['x-request-id']}"
        assert before <= answer.pop("created") <= time.time()
        n_prompt = expected.first.prompt_tokens
        assert answer == {
            "object": "chat.completion",
            "model": "fake",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": expected.text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": "length",
                    "token_ids": expected.tokens,
                }
            ],
            "usage": {
                "prompt_tokens": n_prompt,
                "completion_tokens": 30,
                "total_tokens": n_prompt + 30,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


async def test_a_stream_brings_the_role_with_the_first_text_then_the_rest(codec: TextCodec) -> None:
    async with http_cluster(text=codec, step_s=0.01) as (client, server, _):
        expected = await ask(server.router, grpc_chat(max_tokens=30, seed=7))
        wants = {"include_usage": True}
        *chunks, usage, done = await chat_events(client, **ASKED, stream_options=wants)
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 30
        assert {chunk["object"] for chunk in (*chunks, usage)} == {"chat.completion.chunk"}
        assert {chunk["usage"] for chunk in chunks} == {None}
        choices = [chunk["choices"][0] for chunk in chunks]
        deltas = [choice["delta"] for choice in choices]
        assert deltas[0]["role"] == "assistant"
        assert deltas[0]["content"]
        assert not any("role" in delta for delta in deltas[1:])
        assert "".join(delta.get("content", "") for delta in deltas) == expected.text
        reasons = [choice["finish_reason"] for choice in choices]
        assert reasons == [None] * (len(choices) - 1) + ["length"]


def chunks(*pieces: Piece, **asked: Any) -> list[Any]:
    """Of one choice that gets these pieces; those without news left out."""
    request = ChatRequest(messages=[Message(role="user", content="x")], stream=True, **asked)
    choice = ChatMessage(request, lambda token: b"?", 0)
    made = [choice.chunk(piece) for piece in pieces]
    return [json.loads(chunk) for chunk in made if chunk is not None]


HALF = Piece(token_ids=[7])
LAST = Piece(finish_reason=LENGTH)


def test_a_token_without_text_is_no_chunk_and_an_answer_without_text_has_its_role_at_the_end() -> (
    None
):
    first, last = chunks(HALF, HALF._replace(text="é"), LAST)
    assert first["delta"] == {"role": "assistant", "content": "é"}
    assert (last["delta"], last["finish_reason"]) == ({}, "length")
    (only,) = chunks(HALF, LAST)
    assert only["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": True},
        {"return_token_ids": True},
        {"stream_options": StreamOptions(continuous_usage_stats=True)},
    ],
)
def test_a_token_without_text_is_a_chunk_for_who_asks_for_more_than_text(asked: Any) -> None:
    first, second, _ = chunks(HALF, HALF._replace(text="é"), LAST, **asked)
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert second["delta"] == {"content": "é"}


async def test_log_probabilities_spell_the_answer_in_bytes(codec: TextCodec) -> None:
    async with http_cluster(text=codec) as (client, _, _):
        asked = {**ASKED, "logprobs": True, "return_token_ids": True}
        (choice,) = (await client.post(CHAT_PATH, json=asked)).json()["choices"]
        shown = choice["logprobs"]["content"]
        assert [entry["bytes"] for entry in shown] == [
            list(codec.token_bytes(token)) for token in choice["token_ids"]
        ]
        assert {entry["logprob"] for entry in shown} == {0.0}, "a scripted worker is certain"
        assert [entry["token"].encode() for entry in shown if "\ufffd" not in entry["token"]] == [
            bytes(entry["bytes"]) for entry in shown if "\ufffd" not in entry["token"]
        ]
        *streamed, _ = await chat_events(client, **asked)
        parts = [chunk["choices"][0]["logprobs"]["content"] for chunk in streamed]
        assert [entry for part in parts for entry in part] == shown


async def test_an_answer_can_be_handed_back_as_it_is(codec: TextCodec) -> None:
    async with http_cluster(text=codec) as (client, _, _):
        first = (await client.post(CHAT_PATH, json=ASKED)).json()
        said = [HELLO, first["choices"][0]["message"], HELLO]
        second = await client.post(CHAT_PATH, json={**ASKED, "messages": said})
        assert second.status_code == 200
        assert second.json()["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]


async def test_a_bound_that_is_not_given_is_what_fits(codec: TextCodec) -> None:
    n_pages = 20
    async with http_cluster(text=codec, n_pages=n_pages, step_s=0.0) as (client, _, _):
        for more in ({}, {"min_tokens": 200}):
            answer = (await client.post(CHAT_PATH, json={"messages": [HELLO], **more})).json()
            assert answer["usage"]["total_tokens"] == n_pages * 16
            assert answer["choices"][0]["finish_reason"] == "length"
        much = await client.post(CHAT_PATH, json={"messages": [HELLO], "max_tokens": 320})
        assert (much.status_code, much.json()["error"]["param"]) == (400, "max_tokens")


CONFIG = RouterConfig(limits=LimitsConfig(prompt_bytes=1000, max_tokens=99, chat_messages=3))
BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "x" * 65, "content": "x"}]}, "messages"),
    ({"messages": [HELLO] * 4}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 1001}]}, "messages"),
    ({"messages": [{"role": "user", "content": "\u4f60" * 300}] * 2}, "messages"),
    ({"max_tokens": 100}, "max_tokens"),
    ({"max_completion_tokens": 100}, "max_completion_tokens"),
    ({"model": "nope"}, "model"),
    ({"stop_token_ids": [1000]}, "stop_token_ids"),
    ({"logit_bias": {"1000": 1}}, "logit_bias"),
    ({"stop": ["a"] * 17}, "stop"),
]


async def test_every_bad_request_names_its_field_and_serving_goes_on(codec: TextCodec) -> None:
    async with http_cluster(config=CONFIG, text=codec) as (client, _, _):
        for stream in (False, True):
            for fields, param in BAD:
                asked = {"messages": [HELLO], **fields, "stream": stream}
                response = await client.post(CHAT_PATH, json=asked)
                status = 404 if param == "model" else 400
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (status, param), fields
        assert (await client.post(CHAT_PATH, json=ASKED)).status_code == 200


async def test_a_model_without_a_tokenizer_has_no_chat() -> None:
    async with http_cluster() as (client, _, _):
        response = await client.post(CHAT_PATH, json=ASKED)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


async def test_what_fails_amid_a_stream_is_its_last_event_in_place_of_done(
    codec: TextCodec,
) -> None:
    async with http_cluster(text=codec, step_s=0.02) as (client, server, _):
        asked = {**ASKED, "max_tokens": 1900, "stream": True}
        async with client.stream("POST", CHAT_PATH, json=asked) as response:
            lines = response.aiter_lines()
            await anext(lines)
            server.router.cancel(response.headers["x-request-id"])
            rest = [decoded(line) async for line in lines if line]
        assert rest[-1]["error"]["code"] == "cancelled"


async def test_chats_and_completions_count_together_as_requests_that_run(codec: TextCodec) -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=HttpConfig(requests=1))
    async with http_cluster(text=codec, step_s=0.05, server_config=place) as (client, server, _):
        long = asyncio.create_task(client.post(CHAT_PATH, json={**ASKED, "max_tokens": 1900}))
        async with asyncio.timeout(30.0):
            while not server.router.status().requests:
                await asyncio.sleep(0.01)
        assert (await client.post(PATH, json={"prompt": [1]})).status_code == 503
        long.cancel()
