"""A prompt read by one engine and answered by another, its pages moved by a real transport."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np
import numpy.typing as npt

from tests.kvtransfer.device_pair import D_EPOCH, P_EPOCH, Ear
from twolane.engine.step import Engine, Page, RowWork, SampledToken
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import Bytes, DeviceMemory
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.transports.registry import (
    AnyPool,
    OutletOpener,
    TransportConfig,
    open_landings,
)
from twolane.layout import mismatch, parse_layout
from twolane.params import SamplingParams
from twolane.v1 import transfer_pb2

GREEDY = SamplingParams(temperature=0.0, top_logprobs=2)
DEGREES = (1, 2, 4)
Pages = Sequence[Page]


def prefill(engine: Engine, prompt: Sequence[int], pages: Pages) -> SampledToken:
    n = len(prompt)
    (result,) = engine.run([RowWork(0, prompt, 0, n, pages, n, GREEDY, True)])
    assert not result.error, result.error
    return result.tokens[0]


def decode(
    engine: Engine, prompt: Sequence[int], pages: Pages, first: SampledToken, n: int
) -> list[int]:
    """The first n tokens of the answer, of which one is known."""
    tokens = [*prompt, first.token]
    while len(tokens) < len(prompt) + n:
        row = RowWork(0, tokens, len(tokens) - 1, 1, pages, len(prompt), GREEDY, True)
        (result,) = engine.run([row])
        assert not result.error, result.error
        tokens.append(result.tokens[0].token)
    return tokens[len(prompt) :]


def carry(
    source: Engine, ours: AnyPool, src: Pages, target: Engine, theirs: AnyPool, dst: Pages,
    *, n_tokens: int, transport: str,
) -> None:  # fmt: skip
    """A row's pages of one engine to pages of the other, summed at both ends."""
    side, other = (parse_layout(engine.spec.layout) for engine in (source, target))
    config = TransportConfig(transports=(transport,), checksums=True)
    with ExitStack() as stack:
        landing = stack.enter_context(closing(open_landings(D_EPOCH, theirs, config)[transport]))
        opener = OutletOpener(P_EPOCH, ours, config, source.spec.layout)
        assert mismatch(side, other, opener.makes_dtypes) is None
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH, layout=target.spec.layout, transport=transport,
            transport_address=landing.address, checksums=landing.digests,
        )  # fmt: skip
        outlet = stack.enter_context(closing(opener(hello)))
        paging = Paging(side.page_tokens, other.page_tokens, other.page_bytes)
        n_pages = paging.n_pages(n_tokens)
        even = source.spec.layout == target.spec.layout
        plan = CopyPlan(
            0,
            np.asarray(src[:n_pages]) if even else paging.sources(src, 0, n_pages, n_tokens),
            np.asarray(dst[:n_pages]),
        )
        landing.grant(P_EPOCH, 1, plan.dst)
        sent, come = Ear(outlet), Ear(landing)
        outlet.post(1, 1, plan)
        (posted,) = sent.wait_for(1, 30.0)  # a card may have a kernel to build
        assert posted.ok
        landing.check(1, 0, n_pages)
        (checked,) = come.wait_for(1, 30.0)
        assert checked.checksums.tolist() == posted.checksums.tolist()


def read(pool: AnyPool, pages: Pages) -> Bytes:
    """Their bytes, of all ranks."""
    ids = np.asarray(pages, dtype=np.int64)
    if isinstance(pool, np.ndarray):
        return np.array(pool[ids])
    out = np.empty((ids.size, pool.page_bytes), np.uint8)
    _through(pool, ids, out, is_read=True)
    return out


def spoil(pool: AnyPool, pages: Pages) -> None:
    """Not a number, wherever it is read."""
    ids = np.asarray(pages, dtype=np.int64)
    if isinstance(pool, np.ndarray):
        pool[ids] = 0xFF
    else:
        _through(pool, ids, np.full((ids.size, pool.page_bytes), 0xFF, np.uint8), is_read=False)


def _through(
    memory: DeviceMemory, ids: npt.NDArray[np.int64], buffer: Bytes, *, is_read: bool
) -> None:
    memory.pin(buffer)
    lane = memory.open_copy_stream()
    if is_read:
        lane.to_host(ids, buffer)
    else:
        lane.from_host(buffer, ids)
    lane.close()
    memory.unpin(buffer)


def kept(engine: Engine, pages: Bytes, n_tokens: int) -> npt.NDArray[np.float32]:
    """What all ranks hold of a row's positions in float32 pages: [positions, all else]."""
    side = parse_layout(engine.spec.layout)
    shape = (len(pages), side.ranks * side.layers * 2 * side.kv_heads, side.page_tokens, -1)
    by_position = pages.view(np.float32).reshape(shape).swapaxes(1, 2)
    return by_position.reshape(len(pages) * side.page_tokens, -1)[:n_tokens]
