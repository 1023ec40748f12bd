from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.load.client_processes import ClientDiedError, ClientProcessesConfig, run_plan
from benchmarks.load.record import Record
from benchmarks.load.target import Target
from benchmarks.traffic.plan import Plan


def _target(endpoint: str) -> Target:
    return Target(name="one", endpoints=(endpoint,), vocab_size=100, max_context_tokens=256)


async def test_every_request_is_sent_once_at_its_time(open_door: Callable[..., Any]) -> None:
    door = open_door(ttft_s=0.001, gap_s=0.001)
    n = 9
    plan = Plan(np.linspace(0, 0.4, n), np.arange(1, n + 1), np.full(n, 3), 0)
    seen: list[Record] = []
    records = await run_plan(
        plan,
        prompt_seed=[1],
        targets=[_target(door.endpoint)],
        config=ClientProcessesConfig(n_clients=3),
        on_record=lambda _, record: seen.append(record),
    )
    assert [record.index for record in records["one"]] == list(range(n))
    assert sorted(len(request.token_ids.ids) for request in door.requests) == list(range(1, n + 1))
    assert [record.arrival_s for record in records["one"]] == pytest.approx(plan.arrivals_s)
    assert all(record.late_s >= 0 and record.is_complete for record in records["one"])
    assert {id(record) for record in seen} == {id(record) for record in records["one"]}


async def test_requests_go_to_a_targets_endpoints_in_turn(open_door: Callable[..., Any]) -> None:
    doors = [open_door(ttft_s=0.001, gap_s=0.001) for _ in range(2)]
    plan = Plan(np.linspace(0, 0.2, 9), np.arange(1, 10), np.full(9, 2), 0)
    endpoints = tuple(door.endpoint for door in doors)
    target = Target(name="both", endpoints=endpoints, vocab_size=100, max_context_tokens=256)
    await run_plan(plan, [1], [target], ClientProcessesConfig(n_clients=2), lambda *_: None)
    sent = [sorted(len(r.token_ids.ids) for r in door.requests) for door in doors]
    assert sent == [[1, 3, 5, 7, 9], [2, 4, 6, 8]]


async def test_a_run_that_is_halted_ends_at_once_without_what_was_under_way(
    open_door: Callable[..., Any],
) -> None:
    door = open_door(ttft_s=0.01, gap_s=0.01)
    n_tokens = np.array([2, 2, 6_000, 2])
    plan = Plan(np.array([0.0, 0.1, 0.2, 60.0]), np.full(4, 3), n_tokens, 0)
    first: list[int] = []
    ended: list[int] = []
    records = await run_plan(
        plan,
        [1],
        [_target(door.endpoint)],
        ClientProcessesConfig(n_clients=2),
        lambda _, record: ended.append(record.index),
        on_first=lambda _, index: first.append(index),
        halt=lambda at_s: len(first) == 3 and len(ended) == 2,
    )
    assert [record.index for record in records["one"]] == [0, 1]
    assert sorted(first) == [0, 1, 2]
    assert len(door.requests) == 3


async def test_a_dead_client_process_voids_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    impossible = Plan(np.zeros(1), np.array([-5]), np.array([3]), 0)
    with pytest.raises(ClientDiedError, match="ended with 1"):
        await run_plan(
            impossible, [1], [_target("127.0.0.1:1")], ClientProcessesConfig(), lambda *_: None
        )
    assert "negative dimensions" in capfd.readouterr().err
