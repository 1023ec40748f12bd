"""Writes a pass's rows into the input block that the device reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from twolane.engine.cuda.inputs import HostInputs, InputShape
from twolane.engine.cuda.plans import PROMPTS
from twolane.engine.cuda.shares import Pass, Share
from twolane.engine.kernels.attention.prefill_plan import plan_prefill

NO_SOURCE = -1  # the token is known
NO_SLOT = -1  # padding rows write no keys


def decode_shape(bucket: int, table_pages: int) -> InputShape:
    """The shape of `pack_decode`."""
    return InputShape(bucket, bucket, bucket, table_pages)


def pack_decode(
    rows: list[Share],
    bucket: int,
    latest: Mapping[int, int],
    *,
    table_pages: int,
    page_tokens: int,
    pinned: bool,
) -> HostInputs:
    """One token per row, padded to `bucket` rows that write nothing; every row is sampled.

    `latest`: by row, the index of its sample in the previous step.
    """
    host = HostInputs(decode_shape(bucket, table_pages), pinned=pinned)
    n = len(rows)
    for name, filler in (("ids", 0), ("follow", NO_SOURCE), ("positions", 0), ("slots", NO_SLOT),
                         ("lengths", 0), ("temperatures", 0), ("seeds", 0), ("samples", 0),
                         ("index", 0)):  # fmt: skip
        host[name][n:] = filler
    host["wanted"][:] = np.arange(bucket)
    _write_decode(host, rows, latest, page_tokens)
    _write_sampled(host, rows)
    return host


def pack_mixed(
    what: Pass,
    latest: Mapping[int, int],
    *,
    windows: tuple[int, ...],
    block_tokens: int,
    table_pages: int,
    page_tokens: int,
    pinned: bool,
) -> HostInputs:
    """Decode rows, then chunks; the rows that sample are those of `what.all`, in that order."""
    rows, chunks, n_decode = what.all, what.chunks, len(what.decode)
    tiles = _plan_tiles(chunks, windows, block_tokens)
    sampled = [share for share in rows if share.samples]
    shape = InputShape(
        n_decode + sum(share.n_new for share in chunks),
        len(rows),
        len(sampled),
        table_pages,
        tuple(len(table) for table in tiles),
        max(-(-share.end // page_tokens) for share in chunks),
    )
    host = HostInputs(shape, pinned=pinned)
    _write_decode(host, what.decode, latest, page_tokens)
    last = [*range(n_decode), *_write_chunks(host, chunks, n_decode, page_tokens)]
    host["follow"][n_decode:] = NO_SOURCE
    host["wanted"][:] = [place for place, row in zip(last, rows, strict=True) if row.samples]
    for i, table in enumerate(tiles):
        host[f"tiles{i}"][:] = table
    _write_sampled(host, sampled)
    return host


def prompt_shape(tokens: int, *, n_windows: int, block_tokens: int, table_pages: int) -> InputShape:
    """The shape of `pack_prompts`. No tile spans two prompts, so all but one prompt may need a tile
    more."""
    tiles = -(-tokens // block_tokens) + PROMPTS - 1
    return InputShape(tokens, PROMPTS, PROMPTS, table_pages, (tiles,) * n_windows)


def pack_prompts(
    chunks: list[Share],
    tokens: int,
    *,
    windows: tuple[int, ...],
    block_tokens: int,
    table_pages: int,
    page_tokens: int,
    pinned: bool,
) -> HostInputs:
    """At most PROMPTS chunks, padded to `tokens` tokens that write nothing and that no tile has.
    The rows that sample come first in what is sampled; `wanted` of the others is 0."""
    shape = prompt_shape(
        tokens, n_windows=len(windows), block_tokens=block_tokens, table_pages=table_pages
    )
    host = HostInputs(shape, pinned=pinned)
    used, rows = sum(share.n_new for share in chunks), len(chunks)
    sampled = [share for share in chunks if share.samples]
    fillers = (("ids", 0), ("positions", 0), ("slots", NO_SLOT))
    for name, filler in fillers:
        host[name][used:] = filler
    host["lengths"][rows:] = 0
    for name in ("wanted", "temperatures", "seeds", "samples", "index"):
        host[name][len(sampled) :] = 0
    last = _write_chunks(host, chunks, 0, page_tokens)
    host["follow"][:] = NO_SOURCE
    host["wanted"][: len(sampled)] = [
        place for place, share in zip(last, chunks, strict=True) if share.samples
    ]
    tiles = _plan_tiles(chunks, windows, block_tokens)
    for i, table in enumerate(tiles):
        host[f"tiles{i}"][: len(table)] = table
        host[f"tiles{i}"][len(table) :] = (0, used, used, 0)  # no query, no key
    _write_sampled(host, sampled)
    return host


def _plan_tiles(
    chunks: list[Share], windows: tuple[int, ...], block_tokens: int
) -> list[npt.NDArray[np.int32]]:
    """A table per window."""
    starts, lengths = [s.start for s in chunks], [s.n_new for s in chunks]
    return [plan_prefill(starts, lengths, block_tokens=block_tokens, window=w) for w in windows]


def _write_chunks(
    host: HostInputs, chunks: list[Share], n_decode: int, page_tokens: int
) -> list[int]:
    """Write the chunks behind `n_decode` decode rows; returns the place of each one's last
    token."""
    at = n_decode
    last: list[int] = []
    for i, share in enumerate(chunks):
        end = at + share.n_new
        positions = np.arange(share.start, share.end)
        table = _write_table(host, n_decode + i, share, page_tokens)
        host["ids"][at:end] = share.work.token_ids[share.start : share.end]
        host["positions"][at:end] = positions
        host["slots"][at:end] = (
            table[positions // page_tokens].astype(np.int64) * page_tokens + positions % page_tokens
        )
        at = end
        last.append(end - 1)
    host["lengths"][n_decode : n_decode + len(chunks)] = [share.end for share in chunks]
    return last


def _write_decode(
    host: HostInputs, rows: list[Share], latest: Mapping[int, int], page_tokens: int
) -> None:
    n = len(rows)
    if not n:
        return
    positions = np.array([share.start for share in rows], np.int64)
    host["ids"][:n] = [0 if s.work.follows else s.work.token_ids[s.start] for s in rows]
    host["follow"][:n] = [latest[s.work.row] if s.work.follows else NO_SOURCE for s in rows]
    host["positions"][:n] = positions
    host["lengths"][:n] = positions + 1
    pages = [
        _write_table(host, i, share, page_tokens)[share.start // page_tokens]
        for i, share in enumerate(rows)
    ]
    host["slots"][:n] = np.array(pages, np.int64) * page_tokens + positions % page_tokens


def _write_table(
    host: HostInputs, row: int, share: Share, page_tokens: int
) -> npt.NDArray[np.int32]:
    n_pages = -(-share.end // page_tokens)
    table: npt.NDArray[np.int32] = host["tables"][row]
    table[:n_pages] = share.work.pages[:n_pages]
    return table


def _write_sampled(host: HostInputs, rows: list[Share]) -> None:
    n = len(rows)
    works = [share.work for share in rows]
    host["temperatures"][:n] = [work.params.temperature for work in works]
    host["seeds"][:n] = [work.params.seed or 0 for work in works]
    host["samples"][:n] = [work.sample_index for work in works]
    host["index"][:n] = [work.n_tokens - work.n_prompt for work in works]
