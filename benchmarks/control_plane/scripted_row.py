"""The configuration of scripted workers, and one of their answers."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass

from twolane.rpc.columns import ColumnWriter
from twolane.v1 import sampling_pb2, worker_pb2

CONTEXT_TOKENS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConfig:
    """`step_s` 0: as fast as the router reads. Answers use ids from `first_token` on."""

    router: str
    model: str
    secret: str = ""  # the cluster's
    step_s: float = 0.0
    first_token: int = 16
    vocab_size: int = 256
    max_context_tokens: int = CONTEXT_TOKENS
    decode_rows: int = 1_024

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class ScriptedRow:
    """One answer in progress: `index` is that of the next token."""

    key: worker_pb2.AttemptKey
    number: int  # the number under which its tokens are sent
    index: int
    end: int  # one more than the index of the last token
    top_logprobs: int | None = None  # None: no log-probabilities
    is_new: bool = True

    def tell(self, columns: ColumnWriter, config: ScriptConfig) -> None:
        """Add the next token: it depends only on request and index, so that both workers send the
        same."""
        name = zlib.crc32(self.key.submission_id.encode())
        span = config.vocab_size - config.first_token
        token_id = config.first_token + (name + 7_919 * self.index) % span
        columns.add(self.number, self.index, [token_id])
        if self.top_logprobs is not None:
            top = [(config.first_token + nth, -1.5 - nth) for nth in range(self.top_logprobs)]
            columns.logprobs(1, (-0.25, tuple(top)))
        if self.index == self.end - 1:
            columns.end(sampling_pb2.FINISH_REASON_LENGTH)
