"""Sees all messages of sessions at their workers' ends, and holds two laws:

1. A worker tells tokens of a submission to one router alone: that of the highest fence by which it
   has ever told any, or said yes to an ADOPT.
2. The name of an attempt stands for one thing: who named it, its tokens, its workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from twolane.attempt_number import fence_of
from twolane.rpc.columns import tokens_of
from twolane.testing.links import MemoryLink
from twolane.v1 import worker_pb2

_ADOPTED = worker_pb2.Adopted.RESULT_ADOPTED
_TAKEN = worker_pb2.RowEvent.KIND_TAKEN
Router = tuple[str, int]


class _Thing(NamedTuple):
    """What an attempt's name stands for."""

    by: Router
    decode_epoch: int


class Witness:
    """Of a whole cluster. Raises AssertionError at the message that breaks a law."""

    def __init__(self) -> None:
        self.n_takeovers = 0
        self.n_taken = 0
        self._owner: dict[tuple[int, str], tuple[int, Router]] = {}  # by worker and submission
        self._adopted: dict[tuple[int, str, Router], int] = {}  # fences
        self.names: dict[tuple[str, int], _Thing] = {}
        self._given: dict[tuple[str, int], tuple[int, ...]] = {}
        self._rows: dict[tuple[int, Router, int], tuple[str, int]] = {}  # attempts

    def hears(self, epoch: int, router: Router, request: worker_pb2.SessionRequest) -> None:
        """A worker gets a command."""
        match request.WhichOneof("command"):
            case "assign":
                assign = request.assign
                key = assign.key.submission_id, assign.key.attempt
                self._name(key, _Thing(router, assign.decode.epoch))
                given = tuple(assign.token_ids)
                assert self._given.setdefault(key, given) == given, f"{key} names two prompts"
                self._rows[epoch, router, assign.row] = key
            case "retarget":
                moved = request.retarget
                key = moved.key.submission_id, moved.next_attempt
                self._name(key, _Thing(router, moved.decode.epoch))
                self._rows[epoch, router, moved.next_row] = key
            case "attach":
                attach = request.attach
                key = attach.key.submission_id, attach.key.attempt
                self._rows[epoch, router, attach.row] = key

    def tells(self, epoch: int, router: Router, response: worker_pb2.SessionResponse) -> None:
        """A worker says something."""
        for adopted in response.adopted:
            if adopted.result == _ADOPTED:
                self.n_takeovers += 1
                self._adopted[epoch, adopted.submission_id, router] = adopted.fence
                self._holds(epoch, adopted.submission_id, adopted.fence, router)
        for columns in response.tokens:
            for row, *_ in tokens_of(columns):
                submission, number = self._rows[epoch, router, row]
                fence = self._adopted.get((epoch, submission, router), 0)
                self._holds(epoch, submission, max(fence, fence_of(number)), router)
        self.n_taken += sum(event.kind == _TAKEN for event in response.rows)

    def _holds(self, epoch: int, submission: str, fence: int, router: Router) -> None:
        """A worker obeys or informs this router as the one that has the submission by a fence."""
        highest, owner = self._owner.get((epoch, submission), (fence, router))
        is_lawful = fence > highest or (fence, router) == (highest, owner)
        assert is_lawful, f"{router} has {submission} by {fence}, and {owner} by {highest}"
        self._owner[epoch, submission] = fence, router

    def _name(self, key: tuple[str, int], thing: _Thing) -> None:
        before = self.names.setdefault(key, thing)
        assert before == thing, f"{key} names {before} and {thing}"


class WatchedLink:
    """A session's end at its worker."""

    def __init__(self, link: MemoryLink[Any, Any], witness: Witness, epoch: int) -> None:
        self._link = link
        self._witness = witness
        self._epoch = epoch
        self._router: Router = ("", 0)

    def send(self, message: worker_pb2.SessionResponse) -> None:
        self._witness.tells(self._epoch, self._router, message)
        self._link.send(message)

    async def receive(self) -> worker_pb2.SessionRequest:
        request: worker_pb2.SessionRequest = await self._link.receive()
        if request.HasField("open"):
            self._router = request.open.router_id, request.open.router_epoch
        self._witness.hears(self._epoch, self._router, request)
        return request

    def close(self) -> None:
        self._link.close()
