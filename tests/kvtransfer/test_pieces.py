"""Layout, plan, negotiation, host identity, lifecycles, pool memory: each alone."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from twolane.kvtransfer.copy_plan import runs
from twolane.kvtransfer.digests import mix64, page_checksums
from twolane.kvtransfer.link import process_identity
from twolane.kvtransfer.link.handshake import ReceiverIdentity, sender_hello
from twolane.kvtransfer.link.process_identity import host_identity, open_pidfd, start_ticks
from twolane.kvtransfer.receive import grant, inbound
from twolane.kvtransfer.receive.grant import GRANT_MOVES, GrantState
from twolane.kvtransfer.receive.inbound import IN_MOVES, InState
from twolane.kvtransfer.send import outbound
from twolane.kvtransfer.send.outbound import OUT_MOVES, OutState
from twolane.kvtransfer.testing.memory import MemoryFabric
from twolane.kvtransfer.transports.common.addresses import socket_to
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory, map_peer_memory
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig
from twolane.layout import DTYPE_BYTES, Layout, LayoutError, mismatch, parse_layout
from twolane.lifecycle import IllegalMoveError, Lifecycle
from twolane.v1 import transfer_pb2

FIELDS = {"dtype": "bfloat16", "page_tokens": 16, "layers": 4, "kv_heads": 2, "head_dim": 64}
TEXT = json.dumps(FIELDS)


def test_layout_knows_the_size_of_a_page() -> None:
    assert parse_layout(TEXT).page_bytes == 4 * 2 * 2 * 16 * 64 * 2


@given(
    st.builds(
        Layout,
        ranks=st.sampled_from([1, 2, 4, 8]),
        dtype=st.sampled_from(list(DTYPE_BYTES)),
        page_tokens=st.integers(1, 256),
        layers=st.integers(1, 99),
        kv_heads=st.just(0),
        head_dim=st.integers(1, 256),
        whole_kv_heads=st.sampled_from([1, 2, 4, 8, 16]),
    )
)
def test_a_layout_is_read_from_its_text(drawn: Layout) -> None:
    layout = replace(drawn, kv_heads=max(1, drawn.whole_kv_heads // drawn.ranks))
    assert parse_layout(layout.to_json()) == layout


def test_a_layout_tells_of_ranks_only_where_there_are_several() -> None:
    """The text is what workers and routers of other versions compare."""
    alone = '{"dtype":"bfloat16","head_dim":64,"kv_heads":2,"layers":4,"page_tokens":16}'
    assert parse_layout(TEXT).to_json() == alone
    shared = json.loads(alone) | {"kv_heads": 1, "ranks": 4, "whole_kv_heads": 2}
    assert json.loads(parse_layout(json.dumps(shared)).to_json()) == shared


@pytest.mark.parametrize("name", list(FIELDS))
def test_a_sender_of_its_own_pages_alone_is_refused_by_field(name: str) -> None:
    other = {**FIELDS, name: "float32" if name == "dtype" else 7}
    assert mismatch(parse_layout(TEXT), parse_layout(json.dumps(other)), ()) == name
    assert mismatch(parse_layout(TEXT), parse_layout(TEXT), ()) is None


def test_a_side_of_several_ranks_has_pages_of_all_and_is_refused_where_none_can_be_made() -> None:
    two = parse_layout(json.dumps({**FIELDS, "kv_heads": 1, "ranks": 2}))
    shared = {**FIELDS, "kv_heads": 1, "ranks": 4, "whole_kv_heads": 2}
    four = parse_layout(json.dumps(shared))
    assert two.page_bytes == 2 * two.rank_page_bytes == parse_layout(TEXT).page_bytes
    assert four.page_bytes == 2 * two.page_bytes, "two ranks hold each head"
    assert mismatch(two, four, ()) == mismatch(two, parse_layout(TEXT), ()) == "ranks"
    assert mismatch(two, four, ("bfloat16",)) is None
    assert mismatch(two, two, ()) is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "layout"),
        ("[]", "layout"),
        ("[" * 100_000, "layout"),
        ('{"layers": ' + "9" * 5_000 + "}", "layout"),
        (json.dumps({**FIELDS, "planes": 2}), "planes"),
        (json.dumps({**FIELDS, "layers": 0}), "layers"),
        (json.dumps({**FIELDS, "ranks": 2, "whole_kv_heads": 2}), "kv_heads"),
        (json.dumps({**FIELDS, "ranks": 3, "whole_kv_heads": 2}), "kv_heads"),
        (json.dumps({**FIELDS, "kv_heads": "2"}), "kv_heads"),
        (json.dumps({**FIELDS, "layers": True}), "layers"),
        (json.dumps({**FIELDS, "head_dim": "64"}), "head_dim"),
        (json.dumps({**FIELDS, "dtype": "int7"}), "dtype"),
        (json.dumps({**FIELDS, "dtype": ["float32"]}), "dtype"),
        (json.dumps({k: v for k, v in FIELDS.items() if k != "kv_heads"}), "kv_heads"),
    ],
)
def test_text_that_is_no_layout_is_refused_by_field(text: str, field: str) -> None:
    with pytest.raises(LayoutError) as error:
        parse_layout(text)
    assert error.value.field == field


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_runs_cover_everything_once_and_are_longest(pairs: list[tuple[int, int]]) -> None:
    src = np.array([a for a, _ in pairs], dtype=np.int64)
    dst = np.array([b for _, b in pairs], dtype=np.int64)
    found = runs(src, dst)
    assert [i for a, b in found for i in range(a, b)] == list(range(len(pairs)))
    for a, b in found:
        assert (np.diff(src[a:b]) == 1).all()
        assert (np.diff(dst[a:b]) == 1).all()
    for (_, b), _ in itertools.pairwise(found):
        assert src[b] != src[b - 1] + 1 or dst[b] != dst[b - 1] + 1


def test_mix64_sees_what_changed_and_what_changed_places() -> None:
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (6, 20_000), dtype=np.uint8)
    pool[1:] = pool[0]
    pool[1, 7] ^= 1
    pool[2, :8], pool[2, 8:16] = pool[0, 8:16], pool[0, :8]
    pool[3, 7] ^= 0x80  # the highest bits of two words
    pool[3, 15] ^= 0x80
    pool[4] = 0
    pool[5, :] = np.roll(pool[0], 8)
    sums = mix64(pool, np.arange(6))
    assert len(set(sums.tolist())) == 6
    assert mix64(pool, np.array([5, 0])).tolist() == sums[[5, 0]].tolist()


def test_mix64_is_the_sum_that_its_docstring_defines() -> None:
    pool = np.random.default_rng(3).integers(0, 256, (1, 70_000), dtype=np.uint8)
    total, most = 0, (1 << 64) - 1
    for i, word in enumerate(pool.view("<u8")[0].tolist()):
        x = word + (i + 1) * 0x9E3779B97F4A7C15 & most
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & most
        x = (x ^ x >> 27) * 0x94D049BB133111EB & most
        total += x ^ x >> 31
    assert mix64(pool, np.array([0])).tolist() == [total & most]


def test_checksums_are_xxh3_of_each_page_in_the_order_asked() -> None:
    pool = np.random.default_rng(0).integers(0, 256, (5, 48), dtype=np.uint8)
    sums = page_checksums(pool, np.array([3, 0], dtype=np.int64))
    assert sums.tolist() == [xxhash.xxh3_64_intdigest(pool[i].tobytes()) for i in (3, 0)]


@pytest.mark.parametrize(
    ("states", "moves"),
    [(OutState, OUT_MOVES), (InState, IN_MOVES), (GrantState, GRANT_MOVES)],
)
def test_lifecycle_allows_what_its_table_says_and_nothing_else(
    states: type[Enum], moves: dict[Enum, frozenset[Enum]]
) -> None:
    assert set(moves) == set(states)
    for start, to in itertools.product(states, states):
        life = Lifecycle(start, moves)
        if to in moves[start]:
            life.advance(to)
            assert life.state is to
        else:
            with pytest.raises(IllegalMoveError):
                life.advance(to)


@pytest.mark.parametrize(
    ("module", "moves"),
    [(outbound, OUT_MOVES), (inbound, IN_MOVES), (grant, GRANT_MOVES)],
    ids=["outbound", "inbound", "in_grant"],
)
def test_lifecycle_is_drawn_and_listed_as_its_table_has_it(
    module: ModuleType, moves: dict[Enum, frozenset[Enum]]
) -> None:
    text = module.__doc__ or ""
    listed = re.compile(r"^ {4}([A-Z]+) +-> ([A-Z, ]+)$", re.MULTILINE)
    found = {start: frozenset(to.split(", ")) for start, to in listed.findall(text)}
    table = {start.name: frozenset(to.name for to in after) for start, after in moves.items()}
    assert found == {start: after for start, after in table.items() if after}
    drawing = listed.split(text, maxsplit=1)[0]
    assert {*table} <= {*re.findall("[A-Z]+", drawing)}


def identity(**changed: str) -> ReceiverIdentity:
    fields: dict[str, Any] = {"fingerprint": "f", "layout": TEXT, "host": host_identity()}
    return ReceiverIdentity(worker_id="d", epoch=2, lease_ms=6000, **{**fields, **changed})


def landings(*names: str) -> dict[str, object]:
    fabric = MemoryFabric(call_later=lambda *args: None)
    pool = np.zeros((1, 8), dtype=np.uint8)
    return {name: fabric.landing(2, pool, f"at {name}") for name in names}


def test_first_transport_of_the_sender_that_both_have_is_picked() -> None:
    hello = sender_hello("p", 1, "f", TEXT, ["cuda_ipc", "unix", "tcp"])
    answer = identity().answer(hello, landings("tcp", "unix", "shm"))  # type: ignore[arg-type]
    assert (answer.transport, answer.transport_address) == ("unix", "at unix")
    assert not answer.refused_field


def test_transports_of_one_host_are_not_picked_between_two() -> None:
    hello = sender_hello("p", 1, "f", TEXT, ["shm", "unix", "tcp"])
    far = identity(host="another")
    assert far.answer(hello, landings("shm", "unix", "tcp")).transport == "tcp"  # type: ignore[arg-type]
    assert far.answer(hello, landings("shm")).refused_field == "transports"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [("cuda", "cuda", "cuda_ipc"), ("host", "host", "shm"), ("cuda", "", "unix"),
     ("host", "cuda", "unix")],
)  # fmt: skip
def test_transports_that_share_memory_need_the_same_kind_of_it_on_both_sides(
    ours: str, theirs: str, expected: str
) -> None:
    offered = ["cuda_ipc", "shm", "unix"] if theirs == "cuda" else ["shm", "unix"]
    here = ("cuda_ipc", "shm", "unix") if ours == "cuda" else ("shm", "unix")
    hello = sender_hello("p", 1, "f", TEXT, offered, memory=theirs)
    assert identity(memory=ours).answer(hello, landings(*here)).transport == expected  # type: ignore[arg-type]


def test_pair_that_cannot_work_is_refused_by_field() -> None:
    hello = sender_hello("p", 1, "f", TEXT, ["tcp"])
    there = landings("tcp")
    assert identity(fingerprint="g").answer(hello, there).refused_field == "fingerprint"  # type: ignore[arg-type]
    other = json.dumps({**FIELDS, "page_tokens": 32})
    answer = identity(layout=other).answer(hello, there)  # type: ignore[arg-type]
    assert answer.refused_field == "layout.page_tokens"
    assert not answer.transport


def test_pidfd_is_not_opened_for_a_reused_or_ended_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = start_ticks(child.pid)
    os.close(open_pidfd(child.pid, ticks))
    with pytest.raises(ProcessLookupError):
        open_pidfd(child.pid, ticks + 1)
    child.kill()
    child.communicate()
    with pytest.raises(ProcessLookupError):
        open_pidfd(child.pid, ticks)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**62])
def test_number_that_is_no_pid_is_no_process(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        open_pidfd(pid, 1)


def test_pidfd_is_closed_when_the_process_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    opened: list[int] = []
    pidfd_open = os.pidfd_open

    def open_and_note(pid: int) -> int:
        opened.append(pidfd_open(pid))
        return opened[-1]

    monkeypatch.setattr(os, "pidfd_open", open_and_note)
    monkeypatch.setattr(process_identity, "start_ticks", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        open_pidfd(os.getpid(), 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_pool_memory_is_shared_and_has_no_name_to_leave_behind_when_killed() -> None:
    code = (
        "from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory\n"
        "m = create_pool_memory(8192, 'x'); m.array[:] = 7; print(m.address, flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    address = child.stdout.readline().strip()
    mapped = map_peer_memory(address)
    assert (mapped == 7).all()
    maps = Path(f"/proc/{child.pid}/maps").read_text()
    assert "memfd:twolane-x" in maps
    assert "/dev/shm/" not in maps
    child.send_signal(signal.SIGKILL)
    child.communicate()
    mapped[:] = 8  # ours as long as we hold it
    with pytest.raises(OSError):  # noqa: PT011 -- which one depends on who has the pid now
        map_peer_memory(address)


@pytest.mark.parametrize(
    "address", ["", "x", "a:b:c", "/proc/1/fd/3:x:1", "/proc/1/fd/3:1:" + "9" * 5000, "/etc:1:1"]
)
def test_what_is_no_address_of_a_pool_cannot_be_mapped(address: str) -> None:
    with pytest.raises(OSError, match="no address of a pool"):
        map_peer_memory(address)
    hello = transfer_pb2.ReceiverHello(transport="shm", transport_address=address)
    opener = OutletOpener(1, np.zeros((4, 64), np.uint8), TransportConfig())
    with pytest.raises(OSError, match="no address of a pool"):
        opener(hello)


@pytest.mark.parametrize(
    "address", ["", "x", "h:", "h:x", "h:-1", "h:99999999999999999999", "a..b:1", "a" * 70 + ":1"]
)
def test_what_is_no_address_of_a_socket_cannot_be_dialled(address: str) -> None:
    with pytest.raises(OSError, match="no address of a socket"):
        socket_to("tcp", address)


def test_memory_of_another_inode_is_not_mapped() -> None:
    memory = create_pool_memory(4096, "x")
    path, inode, nbytes = memory.address.rsplit(":", 2)
    with pytest.raises(FileNotFoundError):
        map_peer_memory(f"{path}:{int(inode) + 1}:{nbytes}")
    memory.close()
    memory.close()
