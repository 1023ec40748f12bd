"""The part of an answer that is sent to the client in one message: tokens, their text, and the
finish reason at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from twolane.rpc.columns import GOES_ON, Logprobs
from twolane.v1 import inference_pb2, sampling_pb2


class Piece(NamedTuple):
    """`text` may lag behind the tokens, and belong to earlier ones. `logprobs` are by index, if
    requested. Only the last piece has a finish reason and a ledger."""

    first_index: int = 0
    token_ids: Sequence[int] = ()
    text: str = ""
    logprobs: Mapping[int, Logprobs] = {}
    finish_reason: sampling_pb2.FinishReason = GOES_ON
    ledger: sampling_pb2.Ledger | None = None
    moved_to: Sequence[str] = ()  # the clients' doors at which the answer continues, if not here

    def to_response(self) -> inference_pb2.GenerateResponse:
        response = inference_pb2.GenerateResponse(
            text=self.text,
            finish_reason=self.finish_reason,
            ledger=self.ledger,
            moved=bool(self.moved_to),
            routers=self.moved_to,
        )
        for index, token_id in enumerate(self.token_ids, self.first_index):
            token = response.tokens.add(index=index, token_id=token_id)
            if index in self.logprobs:
                token.logprob, top = self.logprobs[index]
                for its_id, its_logprob in top:
                    token.top_logprobs.add(token_id=its_id, logprob=its_logprob)
        return response
