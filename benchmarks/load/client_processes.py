"""The client processes of one run: they share a plan and return records."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load.caller import now_s
from benchmarks.load.client import Job
from benchmarks.load.record import Record
from benchmarks.load.target import Target
from benchmarks.traffic.plan import Plan

_LINE_BYTES = 64 * 2**20  # a record of a long answer is one long line
_HALT_POLL_S = 0.25
_HEAD_START_S = 0.2  # between the start command and the run's time 0: by then all are waiting


class ClientDiedError(RuntimeError):
    """A client process failed; its error is on our standard error. The run is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProcessesConfig:
    """`n_clients` processes for each target."""

    n_clients: int = 2
    timeout_s: float = 120.0


async def run_plan(
    plan: Plan,
    prompt_seed: Sequence[int],
    targets: Sequence[Target],
    config: ClientProcessesConfig,
    on_record: Callable[[str, Record], None],
    *,
    on_first: Callable[[str, int], None] = lambda name, index: None,
    halt: Callable[[float], bool] = lambda at_s: False,
) -> Mapping[str, list[Record]]:
    """Send the same plan to every target at the same time; records by target, in plan order.

    `on_first` is called at each request's first token. `halt` is called every quarter of a
    second with the time since the run's start: True ends the run; requests that have not ended
    are cancelled and have no record.

    The same prompt_seed gives the same prompts: a cluster that has seen them has them cached.

    Raises `ClientDiedError`. No client process outlives this call, however it ends.
    """
    records: dict[str, list[Record]] = {target.name: [] for target in targets}

    async def collect(process: Process, name: str) -> None:
        while line := await _read_line(process, until_end=True):
            news = json.loads(line)
            if isinstance(news, int):
                on_first(name, news)
                continue
            record = Record.from_json(news)
            records[name].append(record)
            on_record(name, record)

    processes: list[tuple[Process, str]] = []
    try:
        for target in targets:
            for job in _deal(plan, prompt_seed, target, config):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.load.client",
                    stdin=PIPE, stdout=PIPE, limit=_LINE_BYTES,
                )  # fmt: skip
                processes.append((process, target.name))
                _write_line(process, job.to_json())
        for process, _ in processes:
            await _read_line(process)
        start_s = now_s() + _HEAD_START_S
        for process, _ in processes:
            _write_line(process, json.dumps(start_s))
        async with asyncio.TaskGroup() as tasks:
            collecting = [tasks.create_task(collect(*one)) for one in processes]
            while (await asyncio.wait(collecting, timeout=_HALT_POLL_S))[1]:
                if halt(now_s() - start_s):
                    for task in collecting:
                        task.cancel()
                    break
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    finally:
        for process, _ in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
    return {name: sorted(some, key=lambda record: record.index) for name, some in records.items()}


def _deal(
    plan: Plan, prompt_seed: Sequence[int], target: Target, config: ClientProcessesConfig
) -> list[Job]:
    rows = list(
        zip(
            range(len(plan)),
            plan.arrivals_s.tolist(),
            plan.prompt_tokens.tolist(),
            plan.output_tokens.tolist(),
            strict=True,
        )
    )
    n_clients = min(config.n_clients, len(rows))
    return [
        Job(
            endpoints=target.endpoints,
            model=target.model,
            vocab_size=target.vocab_size,
            seed=prompt_seed,
            timeout_s=config.timeout_s,
            requests=rows[i::n_clients],
        )
        for i in range(n_clients)
    ]


def _write_line(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")


async def _read_line(process: Process, *, until_end: bool = False) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line and (not until_end or await process.wait() != 0):
        raise ClientDiedError(f"client process {process.pid} ended with {await process.wait()}")
    return line
