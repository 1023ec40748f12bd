"""Writes a pass's rows into the input block that the device reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from twolane.engine.cuda.inputs import HostInputs, InputShape
from twolane.engine.cuda.shares import Pass, Share
from twolane.engine.kernels.attention.prefill_plan import plan_prefill

NO_SOURCE = -1  # the token is known
NO_SLOT = -1  # padding rows write no keys


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
    host = HostInputs(InputShape(bucket, bucket, bucket, table_pages), pinned=pinned)
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
    starts, lengths = [s.start for s in chunks], [s.n_new for s in chunks]
    tiles = [plan_prefill(starts, lengths, block_tokens=block_tokens, window=w) for w in windows]
    sampled = [share for share in rows if share.samples]
    shape = InputShape(
        n_decode + sum(lengths),
        len(rows),
        len(sampled),
        table_pages,
        tuple(len(table) for table in tiles),
        max(-(-share.end // page_tokens) for share in chunks),
    )
    host = HostInputs(shape, pinned=pinned)
    _write_decode(host, what.decode, latest, page_tokens)
    at = n_decode
    last = list(range(n_decode))
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
    host["follow"][n_decode:] = NO_SOURCE
    host["lengths"][n_decode:] = [share.end for share in chunks]
    host["wanted"][:] = [place for place, row in zip(last, rows, strict=True) if row.samples]
    for i, table in enumerate(tiles):
        host[f"tiles{i}"][:] = table
    _write_sampled(host, sampled)
    return host


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
