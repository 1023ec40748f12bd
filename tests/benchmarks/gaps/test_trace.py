"""Stamps along a token's way: taken where they should be, and the late hop is found."""

import asyncio
import gc
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gaps.hops import HOPS, StampError, late_steps, of_stage, pauses, step_times
from benchmarks.gaps.stamps import (
    STAGES,
    Ring,
    Rows,
    n_tokens,
    patches,
    points,
    read_stamps,
    watch_writes,
    wrap,
)
from benchmarks.gaps.trace import SITE, report, traced
from tests.until import wait_until
from twolane.rpc.columns import ColumnWriter
from twolane.v1 import inference_pb2, worker_pb2

N_STEPS, N_ROWS, STEP_NS = 200, 3, 8_000_000
WORKER, PREFILL = 7, 8


def scene(late: dict[str, tuple[int, int]] | None = None) -> dict[str, Rows]:
    """A worker, a router and a client, each hop a tenth of a millisecond. `late`: of a hop, the
    step that it holds up, and for how many milliseconds."""
    late = late or {}
    rows: dict[str, list[tuple[int, int, int, int]]] = {"1": [], "2": [], "3": []}

    def add(process: str, stage: str, amount: int, at: int, epoch: int = 0) -> None:
        rows[process].append((STAGES.index(stage), amount, epoch, at))

    begin = 0
    for step in range(N_STEPS):
        held = {hop: ms * 1_000_000 for hop, (at, ms) in late.items() if at == step}
        begin += STEP_NS + held.get("engine", 0)
        now = begin
        add("1", "sampled", 0, now)
        for hop, process, stage in (
            ("landing", "1", "landed"), ("applying", "1", "applied"), ("shipping", "1", "shipped"),
            ("link", "2", "read"), ("telling", "2", "told"),
        ):  # fmt: skip
            now += 100_000 + held.get(hop, 0)
            add(process, stage, N_ROWS, now, WORKER)
        for hop, process, stage in (("writing", "2", "written"), ("receiving", "3", "received")):
            now += 100_000 + held.get(hop, 0)
            for row in range(N_ROWS):
                add(process, stage, 1, now - (N_ROWS - row))
        if step % 50 == 0:  # a token that is not written comes between
            add("2", "read", 1, now + 1, PREFILL)
            add("2", "told", 1, now + 2, PREFILL)
    return {name: np.array(found, np.int64) for name, found in rows.items()}


def test_calm_steps_are_not_late_and_their_hops_are_as_long_as_they_are() -> None:
    found = late_steps(step_times(scene()))
    assert found["steps"] == N_STEPS - 1
    assert found["late_steps"] == 0
    assert found["gap_p50_ms"] == 8.0
    assert found["hops"]["engine"]["p50_ms"] == 8.0
    assert [found["hops"][hop]["p50_ms"] for hop in HOPS[1:]] == pytest.approx([0.1] * 7)


@pytest.mark.parametrize("hop", HOPS)
def test_the_hop_that_made_a_step_late_is_named(hop: str) -> None:
    found = late_steps(step_times(scene({hop: (60, 5)})))
    assert {name: of["late_steps"] for name, of in found["hops"].items() if of["late_steps"]} == {
        hop: 1
    }
    assert found["hops"][hop]["max_ms"] >= 5


def test_without_stamps_of_writes_receiving_lasts_from_when_clients_tasks_know() -> None:
    processes = scene({"receiving": (60, 5)})
    is_write = processes["2"][:, 0] == STAGES.index("written")
    processes["2"] = processes["2"][~is_write]
    hops = late_steps(step_times(processes))["hops"]
    assert hops["writing"]["max_ms"] == 0
    assert hops["receiving"]["p50_ms"] == pytest.approx(0.2)
    assert hops["receiving"]["late_steps"] == 1


def test_another_answers_first_token_is_not_the_end_of_a_step() -> None:
    processes = scene()
    reads = of_stage(processes["2"], "read")
    at = int(reads[reads[:, 2] == WORKER][60, 3]) + 4_000_000  # amid step 61
    first = [("2", "read", at), ("2", "written", at + 300_000), ("3", "received", at + 400_000)]
    for process, stage, now in first:
        row = np.array([[STAGES.index(stage), 1, PREFILL, now]], np.int64)
        processes[process] = np.concatenate([processes[process], row])
    found = late_steps(step_times(processes))
    assert found["late_steps"] == 0
    assert found["hops"]["writing"]["max_ms"] == pytest.approx(0.1)
    assert found["hops"]["receiving"]["max_ms"] == pytest.approx(0.1)


def test_messages_that_are_not_the_workers_are_refused() -> None:
    processes = scene()
    processes["2"][0, 1] += 1  # the first message that was read
    with pytest.raises(StampError, match="other messages"):
        step_times(processes)


def test_each_point_where_stamps_are_taken_is_there() -> None:
    for module, owner, name in points(Ring(4)):
        if module.startswith("twolane.engine.cuda"):
            pytest.importorskip("triton")
        assert callable(getattr(getattr(importlib.import_module(module), owner), name))
    assert "twolane.router.doors.grpc_door" in patches(Ring(4))


@pytest.mark.parametrize("stream", ["an answer's own", "of many answers"])
def test_writes_of_the_door_leave_stamps_with_their_tokens(stream: str) -> None:
    door, ring = SimpleNamespace(), Ring(4)

    async def generate(self: Any, request: Any, context: Any) -> None:
        await context.write(request)

    door.Door = type("Door", (), {"_generate": generate})
    door.Multiplexed = lambda context, *rest: context

    class Context:
        async def write(self, response: Any) -> None: ...

    watch_writes(door, ring)
    if stream == "of many answers":
        message = inference_pb2.MultiplexResponse(answers=[1, 2], token_ids=[7, 8])
        asyncio.run(door.Multiplexed(Context(), None, None).write(message))
    else:
        tokens = [inference_pb2.Token(), inference_pb2.Token()]
        response = inference_pb2.GenerateResponse(tokens=tokens)
        asyncio.run(door.Door()._generate(response, Context()))
    assert ring.take()[:, :2].tolist() == [[STAGES.index("written"), 2]]


def test_tokens_are_counted_whose_columns_travel_together() -> None:
    prefill, decode = ColumnWriter(worker_pb2.ROLE_PREFILL), ColumnWriter(worker_pb2.ROLE_DECODE)
    prefill.add(1, 0, [5])
    decode.add(2, 3, [6, 7])
    decode.add(4, 9, [8])
    columns = [writer.take() for writer in (prefill, decode)]
    assert n_tokens(worker_pb2.SessionResponse(tokens=columns)) == 4


def test_a_ring_keeps_the_newest_rows_and_gives_each_once() -> None:
    ring = Ring(4)
    for n in range(6):
        ring.add("shipped", n)
    assert ring.take()[:, 1].tolist() == [2, 3, 4, 5]
    ring.add("shipped", 6)
    assert ring.take()[:, 1].tolist() == [6]
    assert ring.take().shape == (0, 4)


def test_a_wrapped_method_answers_as_before() -> None:
    class Door:
        def open(self, n: int, *, wide: bool) -> int:
            return n if wide else 0

    seen: list[Any] = []
    wrap(Door, "open", lambda self, given: seen.append(given), lambda self, given: seen.append(0))
    assert Door().open(3, wide=True) == 3
    assert seen == [(3,), 0]


def test_a_process_that_is_started_meanwhile_is_traced_and_no_other(tmp_path: Path) -> None:
    program = (
        "import gc, os, sys, time; before = 'benchmarks.gaps.stamps' in sys.modules\n"
        "from benchmarks.load.caller import Answer\n"
        "answer = Answer(0.0) if before else sys.exit('untraced')\n"
        "from benchmarks.gaps.stamps import STAGES, read_stamps; from pathlib import Path\n"
        "answer.note(0, 0.5); answer.note(2, 1.0)\n"
        "written = Path(sys.argv[1], f'{os.getpid()}.stamps')\n"
        "is_there = lambda: STAGES.index('received') in read_stamps(written)[:, 0]\n"
        "while not (written.exists() and is_there()): gc.collect(); time.sleep(0.01)\n"
    )
    with traced(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
        assert child.wait() == 0
        wait_until(lambda: len([*tmp_path.iterdir()]) == 2, "this one, and the idle one")
    rows = read_stamps(tmp_path / f"{child.pid}.stamps")
    of = {stage: rows[rows[:, 0] == nth] for nth, stage in enumerate(STAGES)}
    assert of["received"][:, 1].tolist() == [2]
    assert pauses(rows)["gc"]["n"] >= 1
    assert len([*tmp_path.iterdir()]) == 2, "and no other"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1
    assert SITE.is_dir()
    gc.collect()


def test_a_report_names_processes_by_what_they_did() -> None:
    found = report(scene(), {"ttft_p50_ms": 1.0})
    assert [*found["pauses"]] == ["client 3", "router 2", "worker 1"]
