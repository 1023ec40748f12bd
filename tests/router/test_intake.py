"""A prompt is encoded where it does not hold up the others: on the event loop only if short."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from twolane.errors import InvalidRequestError
from twolane.router.config import LimitsConfig, RouterConfig
from twolane.router.dispatch.board import Board, NullDispatchObserver
from twolane.router.intake import Intake
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.worker import DECODE, PREFILL, ScriptedWorker
from twolane.router.text.codec import TextCodec
from twolane.v1 import inference_pb2


class WatchedCodec(TextCodec):
    """Notes which thread does what; its template repeats what it is given `times`."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.threads: dict[str, bool] = {}  # by what was done: whether on the main thread

    def least_tokens(self, text: str) -> int:
        return len(text) // 1000

    def _note(self, what: str) -> None:
        self.threads[what] = threading.current_thread() is threading.main_thread()

    def encode(self, text: str) -> list[int]:
        self._note("encode")
        return [1]

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        self._note("render")
        return "".join(m["role"] + m["content"] for m in messages) * self.times

    def encode_rendered(self, rendered: str) -> list[int]:
        self._note("encode")
        return [1]


def chat(*turns: tuple[str, str]) -> inference_pb2.GenerateRequest:
    messages = [inference_pb2.ChatMessage(role=role, content=text) for role, text in turns]
    return inference_pb2.GenerateRequest(chat=inference_pb2.Chat(messages=messages))


@pytest.mark.parametrize(
    ("request_", "times", "on_loop"),
    [
        (inference_pb2.GenerateRequest(text="x" * 100), 1, {"encode": True}),
        (inference_pb2.GenerateRequest(text="x" * 101), 1, {"encode": False}),
        (chat(("user", "x" * 96)), 1, {"render": True, "encode": True}),
        (chat(("user", "x" * 97)), 1, {"render": False, "encode": False}),
        (chat(("u" * 60, "x"), ("a" * 60, "x")), 1, {"render": False, "encode": False}),
        (chat(("user", "x" * 50)), 2, {"render": True, "encode": False}),
    ],
)
async def test_long_text_is_encoded_off_the_loop(request_: Any, times: int, on_loop: Any) -> None:
    board = Board(RouterConfig(inline_text_chars=100), NullDispatchObserver())
    for epoch, role in ((1, PREFILL), (2, DECODE)):
        worker = ScriptedWorker(ScriptedCluster(), f"w{epoch}", epoch, (role,))
        board.members.announce(worker.announce(), 0.0)
    codec = WatchedCodec(times)
    await Intake(board, codec).make_job(request_, 0.0, None)
    assert codec.threads == on_loop


@pytest.mark.parametrize("times", [1, 2])
async def test_a_text_that_has_too_many_tokens_for_sure_is_not_tokenized(times: int) -> None:
    limits = LimitsConfig(prompt_tokens=9)
    board = Board(RouterConfig(limits=limits), NullDispatchObserver())
    codec = WatchedCodec(times)
    text = "x" * (10_000 // times)
    asks = inference_pb2.GenerateRequest(text=text) if times == 1 else chat(("u", text))
    with pytest.raises(InvalidRequestError, match="has 10 tokens or more; at most 9 are taken"):
        await Intake(board, codec).make_job(asks, 0.0, None)
    assert "encode" not in codec.threads
