"""A small wrapper of NIXL: one agent, one peer, pages by number.

    receiver   agent = NixlAgent(name, regions)          sends agent.metadata and its regions
    sender     agent = NixlAgent(name, regions)
               agent.meet(metadata, regions, page_bytes)
               write = agent.write(src, dst); write.state() ... until it is not UNDER_WAY

An agent has no thread: its owner must call `drive` while writes are under way, at the receiver's
end too. Over RDMA cards that costs little; over sockets it is what moves the bytes, and bytes that
come are written only during `drive`. NIXL's own thread is off because it spins on a core when idle.

An agent serves one pair, so that `close` is proof: when it returns, its connections and
registrations are gone, and nothing can write to or read from its memory through them.

Pages are written, never read: where UCX emulates reads in software, the process that is read from
aborts when the reader goes away (UCX 1.21, "Fatal: unexpected error").

UCX chooses the fabric by its own environment (UCX_TLS, UCX_NET_DEVICES).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import Region

_PACKAGE = "nixl_cu13"
_FABRIC = Path("/sys/class/infiniband")  # RoCE cards too
_LOCAL = "NIXL_INIT_AGENT"

Indices = npt.NDArray[np.int32]


class NixlError(OSError):
    """NIXL refused, or the peer is gone; the message says which."""


def is_installed() -> bool:
    return importlib.util.find_spec(_PACKAGE) is not None


def has_fabric() -> bool:
    """Whether there is an RDMA card."""
    return _FABRIC.is_dir() and any(_FABRIC.iterdir())


@functools.cache
def check_works() -> None:
    """Raises `NixlError` if no agent can be created. The first call in a process is slow, so that
    the first agent is not."""
    memory = np.zeros(4096, np.uint8)
    NixlAgent("probe", (Region(memory.ctypes.data, memory.nbytes),)).close()


class WriteState(Enum):
    UNDER_WAY = auto()
    DONE = auto()  # all of it is in the peer's memory
    FAILED = auto()  # some of it may be under way until the agent is closed


class NixlWrite:
    """A write under way."""

    def __init__(self, agent: Any, handle: Any) -> None:
        self._agent = agent
        self._handle = handle

    def state(self) -> WriteState:
        """Also lets the agent work."""
        try:
            with _nixl_errors():
                state = self._agent.check_xfer_state(self._handle)
        except NixlError:
            return WriteState.FAILED
        return {"DONE": WriteState.DONE, "PROC": WriteState.UNDER_WAY}.get(state, WriteState.FAILED)

    def release(self) -> None:
        """Release it; it is not polled again. May be repeated."""
        handle, self._handle, self._agent = self._handle, None, None
        if handle is not None:
            with suppress(NixlError), _nixl_errors():
                handle.release()


class NixlAgent:
    """Used by one thread. Raises `NixlError` if NIXL does not work here."""

    def __init__(self, name: str, regions: Sequence[Region]) -> None:
        self._regions = tuple(regions)
        self._lists: list[Any] = []
        self._writes: set[NixlWrite] = set()
        self._ours: Any = None
        self._theirs: Any = None
        with _nixl_errors():
            from nixl_cu13._api import nixl_agent, nixl_agent_config

            logging.getLogger("nixl").setLevel(logging.WARNING)
            self._agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=False))
            rows = [(r.address, r.n_bytes, r.device or 0, "") for r in self._regions]
            self._registered = self._agent.register_memory(rows, _kind(self._regions))
            self.metadata: bytes = self._agent.get_agent_metadata()

    def meet(self, metadata: bytes, regions: Sequence[Region], page_bytes: int) -> None:
        """Set the peer to write to, and the pages of both sides. Call once."""
        assert self._theirs is None, "one peer an agent"
        with _nixl_errors():
            name = self._agent.add_remote_agent(metadata)
            self._ours = self._pages_of(_LOCAL, self._regions, page_bytes)
            self._theirs = self._pages_of(name, regions, page_bytes)
        self._n_ours = _n_pages(self._regions, page_bytes)
        self.n_peer_pages = _n_pages(regions, page_bytes)

    def write(self, src: PageIds, dst: PageIds) -> NixlWrite:
        """Begin to copy our pages to the peer's. NIXL merges each run into one descriptor."""
        ours, theirs = self._indices(src, self._n_ours), self._indices(dst, self.n_peer_pages)
        with _nixl_errors():
            handle = self._agent.make_prepped_xfer(
                "WRITE", self._ours, ours, self._theirs, theirs, b""
            )
            write = NixlWrite(self._agent, handle)
            self._writes.add(write)
            self._agent.transfer(handle)
        return write

    def release(self, write: NixlWrite) -> None:
        """Release a finished write."""
        self._writes.discard(write)
        write.release()

    def drive(self) -> None:
        """Let it work: write what has arrived, answer what needs an answer."""
        with _nixl_errors():
            self._agent.get_new_notifs()

    def close(self) -> None:
        """Nothing is read or written any more when this returns. May be repeated."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        for held in (*self._writes, *self._lists):
            with suppress(NixlError), _nixl_errors():
                held.release()
        self._writes.clear()
        self._lists.clear()
        self._ours = self._theirs = None
        with suppress(NixlError), _nixl_errors():
            agent.deregister_memory(self._registered)
        agent._leaked_xfer_handles.clear()
        agent.agent = None  # the last reference to what NIXL is made of: it ends here

    # -- inside -----------------------------------------------------------------------------

    def _pages_of(self, owner: Any, regions: Sequence[Region], page_bytes: int) -> Any:
        """Prepare one descriptor for each page and region."""
        assert page_bytes % len(regions) == 0
        part = page_bytes // len(regions)
        rows = [(r.address, part, r.device or 0, part, r.n_bytes // part) for r in regions]
        prepared = self._agent.prep_xfer_dlist(owner, np.array(rows, np.uint64), _kind(regions))
        self._lists.append(prepared)
        return prepared

    def _indices(self, pages: PageIds, n_pages: int) -> Indices:
        """Indices of the pages' parts in the prepared lists, one for each region."""
        return np.concatenate(
            [pages + nth * n_pages for nth in range(len(self._regions))], dtype=np.int32
        )


def _n_pages(regions: Sequence[Region], page_bytes: int) -> int:
    return regions[0].n_bytes // (page_bytes // len(regions))


def _kind(regions: Sequence[Region]) -> str:
    return "DRAM" if regions[0].device is None else "VRAM"


@contextmanager
def _nixl_errors() -> Iterator[None]:
    """Turns NIXL's exceptions into `NixlError`."""
    try:
        from nixl_cu13 import _bindings
    except ImportError as error:
        raise NixlError(f"{error}: pip install 'twolane[nixl]'") from error
    kinds = [kind for name, kind in vars(_bindings).items() if name.endswith("Error")]
    try:
        yield
    except (RuntimeError, ValueError, TypeError, *kinds) as error:
        raise NixlError(f"{type(error).__name__}: {error}") from error
