"""Encodes a step and its results as bytes, with only what the ranks need.

    step     number, counts | one record per row | token ids | pages | parameters (JSON lines)
    result   number, digest | counts | rows, token counts | tokens | rare fields (JSON)

Only those tokens of a row are sent that this step needs: the ones that it computes, or all if a
penalty counts them. `digest` covers rows, tokens and errors, to detect ranks that disagree.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, cast, overload

import numpy as np
import numpy.typing as npt

from twolane.engine.cpu.logits import leaves_logits_alone
from twolane.engine.step import Page, RowResult, RowWork, SampledToken
from twolane.params import SamplingParams

_STEP = struct.Struct("<QIIII")  # number, rows, ids, pages, bytes of parameters
_RESULT = struct.Struct("<QIII")  # number, digest, rows, tokens
_ROW = np.dtype([
    (name, "<i8") for name in ("row", "start", "n_new", "n_known", "n_prompt", "sample_index",
                               "sample", "follows", "first_id", "n_ids", "n_pages", "params")
])  # fmt: skip
_KEPT_PARAMS = 4096  # cached parameters; then the cache is cleared


class StepWriter:
    """Encodes steps; caches the text of parameters, which a row keeps for its life."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[SamplingParams, str]] = {}  # by identity; holds a reference

    def encode(self, number: int, work: Sequence[RowWork]) -> bytes:
        records = np.empty(len(work), _ROW)
        ids: list[int] = []
        pages: list[Page] = []
        texts: dict[str, int] = {}
        for i, row in enumerate(work):
            first, shipped = _shipped(row)
            end_page = len(row.pages)
            nth = texts.setdefault(self._text(row.params), len(texts))
            records[i] = (
                row.row, row.start, row.n_new, row.n_known, row.n_prompt, row.sample_index,
                row.sample, row.follows, first, len(shipped), end_page, nth,
            )  # fmt: skip
            ids += shipped
            pages += row.pages
        params = "\n".join(texts).encode()
        head = _STEP.pack(number, len(work), len(ids), len(pages), len(params))
        parts = (np.array(ids, "<i8").tobytes(), np.array(pages, "<i8").tobytes())
        return b"".join((head, records.tobytes(), *parts, params))

    def _text(self, params: SamplingParams) -> str:
        found = self._texts.get(id(params))
        if found is None:
            if len(self._texts) >= _KEPT_PARAMS:
                self._texts.clear()
            facts = {field.name: getattr(params, field.name) for field in fields(params)}
            facts["logit_bias"] = list(params.logit_bias.items())
            found = self._texts[id(params)] = (params, json.dumps(facts, default=_plain))
        return found[1]


class StepReader:
    """Decodes steps; caches parameters by their text."""

    def __init__(self) -> None:
        self._params: dict[bytes, SamplingParams] = {}

    def decode(self, body: bytes) -> tuple[int, list[RowWork]]:
        """The step's number and its rows."""
        number, n_rows, n_ids, n_pages, n_text = _STEP.unpack_from(body)
        at = _STEP.size
        records = np.frombuffer(body, _ROW, n_rows, at)
        at += records.nbytes
        ids: list[int] = np.frombuffer(body, "<i8", n_ids, at).tolist()
        at += 8 * n_ids
        pages: list[int] = np.frombuffer(body, "<i8", n_pages, at).tolist()
        params = self._read_params(body[at + 8 * n_pages : at + 8 * n_pages + n_text])
        work, at_id, at_page = [], 0, 0
        for record in records.tolist():
            (row, start, n_new, n_known, n_prompt, sample_index, sample, follows, first, n, n_held,
             nth) = record  # fmt: skip
            held = ids[at_id : at_id + n]
            known = held if n == n_known else PartOfTokens(first, held, n_known)
            own = cast(list[Page], pages[at_page : at_page + n_held])
            work.append(
                RowWork(row, known, start, n_new, own, n_prompt, params[nth], bool(sample),
                        sample_index, bool(follows))
            )  # fmt: skip
            at_id, at_page = at_id + n, at_page + n_held
        return number, work

    def _read_params(self, text: bytes) -> list[SamplingParams]:
        found: list[SamplingParams] = []
        for key in text.split(b"\n"):
            params = self._params.get(key)
            if params is None:
                if len(self._params) >= _KEPT_PARAMS:
                    self._params.clear()
                facts = json.loads(key)
                facts["logit_bias"] = dict(facts["logit_bias"])
                params = self._params[key] = SamplingParams(**facts)
            found.append(params)
        return found


class PartOfTokens(Sequence[int]):
    """`n` tokens of which only those from `first` on are `held`; the others must not be
    accessed."""

    __slots__ = ("_first", "_held", "_n")

    def __init__(self, first: int, held: list[int], n: int) -> None:
        self._first, self._held, self._n = first, held, n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._n)
            assert step == 1, "tokens are taken in order"
            return (
                [] if stop <= start else self._held[self._place(start) : self._place(stop - 1) + 1]
            )
        return self._held[self._place(at)]

    def _place(self, at: int) -> int:
        place = at - self._first
        assert 0 <= place < len(self._held), f"token {at} was not sent with this step"
        return place


def _plain(number: np.generic) -> Any:
    """Parameters may contain numpy numbers."""
    return number.item()


def _shipped(row: RowWork) -> tuple[int, list[int]]:
    """The tokens that a rank needs, and the index of the first."""
    if row.sample and not leaves_logits_alone(row.params, row.n_tokens - row.n_prompt):
        return 0, list(row.token_ids[: row.n_known])
    end = min(row.start + row.n_new, row.n_known)
    return row.start, list(row.token_ids[row.start : end])


def encode_results(number: int, results: Sequence[RowResult]) -> bytes:
    """Rank 0's answer."""
    tokens = [sampled for result in results for sampled in result.tokens]
    rare: dict[str, Any] = {}
    errors = {i: result.error for i, result in enumerate(results) if result.error}
    if errors:
        rare["errors"] = errors
    logprobs = {i: (t.logprob, t.top) for i, t in enumerate(tokens) if t.logprob is not None}
    if logprobs:
        rare["logprobs"] = logprobs
    head = _RESULT.pack(number, digest(results), len(results), len(tokens))
    return b"".join((head, *_columns(results), json.dumps(rare).encode() if rare else b""))


def encode_digest(number: int, results: Sequence[RowResult]) -> bytes:
    """The other ranks' answer."""
    return _RESULT.pack(number, digest(results), 0, 0)


def read_head(body: bytes) -> tuple[int, int]:
    """(number of the step, digest)."""
    number, found, _, _ = _RESULT.unpack_from(body)
    return number, found


def decode_results(body: bytes) -> list[RowResult]:
    _, _, n_rows, n_tokens = _RESULT.unpack_from(body)
    at = _RESULT.size
    rows: list[list[int]] = np.frombuffer(body, "<i8", 2 * n_rows, at).reshape(2, -1).tolist()
    at += 16 * n_rows
    tokens: list[int] = np.frombuffer(body, "<i8", n_tokens, at).tolist()
    at += 8 * n_tokens
    rare: dict[str, Any] = json.loads(body[at:]) if len(body) > at else {}
    errors, logprobs = rare.get("errors", {}), rare.get("logprobs", {})
    sampled = [SampledToken(token) for token in tokens]
    for place, (logprob, top) in logprobs.items():
        pairs = tuple((int(token), float(value)) for token, value in top)
        sampled[int(place)] = SampledToken(tokens[int(place)], logprob, pairs)
    results, at = [], 0
    for i, (row, n) in enumerate(zip(*rows, strict=True)):
        results.append(RowResult(row, tuple(sampled[at : at + n]), errors.get(str(i), "")))
        at += n
    return results


def digest(results: Sequence[RowResult]) -> int:
    """Covers rows, tokens and errors."""
    found = 0
    for part in (*_columns(results), *(result.error.encode() for result in results)):
        found = zlib.crc32(part, found)
    return found


def _columns(results: Sequence[RowResult]) -> Iterable[bytes]:
    rows = [[result.row for result in results], [len(result.tokens) for result in results]]
    tokens = [sampled.token for result in results for sampled in result.tokens]
    held: tuple[npt.NDArray[np.int64], ...] = (np.array(rows, "<i8"), np.array(tokens, "<i8"))
    return [part.tobytes() for part in held]
