"""Workers die, freeze and lose their sessions; the client's answer stays exact."""

import asyncio
from typing import Any

import pytest

from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.scenario import PROMPT, N, counters, scenario
from twolane.v1 import worker_pb2

# Prefill worker: prefill until 21 ms, transfer until 31 ms, then decode


@pytest.mark.parametrize("at_s", [0.002, 0.01, 0.0205, 0.025, 0.0295])
def test_prefill_worker_killed_before_its_pages_are_over_costs_one_resume(at_s: Any) -> None:
    def check(router: Router, cluster: ScriptedCluster) -> None:
        # dead before anything arrived: D judges DEAD, and one new attempt is made
        assert counters(router)["attempts"] == 2

    scenario(at_s, lambda r, c, p, d: c.workers[p].kill(), check=check)


@pytest.mark.parametrize("at_s", [0.04, 0.2])
def test_prefill_worker_killed_after_the_transfer_costs_nothing(at_s: Any) -> None:
    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["attempts"] == 1

    scenario(at_s, lambda r, c, p, d: c.workers[p].kill(), check=check)


def test_killed_prefill_worker_is_judged_by_the_decode_worker_and_landed_rows_go_on() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        # everything has landed, but neither JOINED nor HANDED_OVER reach the router
        cluster.workers[d].loses = lambda m: (
            bool(m.rows) and m.rows[0].kind == m.rows[0].KIND_JOINED
        )
        cluster.workers[d].step_s = 0.5
        cluster.workers[p].loses = lambda m: bool(m.rows)
        cluster.workers[p].later(0.0305, cluster.workers[p].kill)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["attempts"] == 1
        judged = [
            c for w in cluster.workers.values() for c in w.commands if c.HasField("judge_peer")
        ]
        assert len(judged) == 1

    # D's first token event is lost with JOINED, so the router must rely on the verdict
    scenario(0.001, fault, check=check)


def test_silent_judge_is_waited_for_one_second_only() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].judges = False
        task = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.01)
        cluster.workers["p0"].kill()
        await asyncio.sleep(0.5)
        assert counters(router)["attempts"] == 1
        await asyncio.sleep(0.6)
        assert counters(router)["attempts"] == 2
        assert (await task).tokens == expected_answer(PROMPT, N)

    async def with_second(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["p1"].prefill_s = 0.02
        await script(router, cluster)

    play(with_second, ("p0", "p1", "d0"), clean_after_s=4.0)


@pytest.mark.parametrize("at_s", [0.002, 0.01, 0.025, 0.03, 0.04, 0.1, 0.3])
def test_decode_worker_killed_at_any_moment_loses_no_token(at_s: Any) -> None:
    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["attempts"] == 2

    scenario(at_s, lambda r, c, p, d: c.workers[d].kill(), check=check)


def test_decode_worker_killed_before_commit_is_replaced_without_computing_again() -> None:
    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["retargets"] == 1
        assigns = [
            command.assign
            for worker in cluster.workers.values()
            for command in worker.commands
            if command.HasField("assign") and worker_pb2.ROLE_PREFILL in command.assign.roles
        ]
        assert len(assigns) == 1

    scenario(0.025, lambda r, c, p, d: c.workers[d].kill(), check=check)


@pytest.mark.parametrize("at_s", [0.002, 0.025, 0.1])
def test_both_workers_killed_costs_one_resume(at_s: Any) -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[p].kill()
        cluster.workers[d].kill()

    scenario(at_s, fault)


@pytest.mark.parametrize("at_s", [0.002, 0.025, 0.1])
def test_colocated_worker_killed_costs_one_resume(at_s: Any) -> None:
    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["attempts"] == 2

    scenario(at_s, lambda r, c, p, d: c.workers[p].kill(), ("b0", "b1"), check=check)


@pytest.mark.parametrize("at_s", [0.002, 0.025, 0.1])
@pytest.mark.parametrize("who", ["p", "d"])
def test_cut_session_is_attached_again_and_costs_no_attempt(at_s: Any, who: Any) -> None:
    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["attempts"] == 1
        attached = [c for w in cluster.workers.values() for c in w.commands if c.HasField("attach")]
        # a prefill worker whose row has gone over is not asked
        assert len(attached) == (0 if who == "p" and at_s > 0.05 else 1)

    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[p if who == "p" else d].cut()

    scenario(at_s, fault, check=check)


def test_sessions_cut_again_and_again_lose_nothing() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        for n in range(8):
            cluster.workers[d].later(0.04 * n, cluster.workers[d].cut)
            cluster.workers[p].later(0.04 * n, cluster.workers[p].cut)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        attached = [c for w in cluster.workers.values() for c in w.commands if c.HasField("attach")]
        assert len(attached) > 3, "the answer was under way at several cuts"

    scenario(0.001, fault, check=check)


@pytest.mark.parametrize("who", ["p", "d"])
def test_frozen_worker_is_replaced_after_three_seconds_and_its_late_words_are_dropped(
    who: Any,
) -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        worker = cluster.workers[p if who == "p" else d]
        worker.freeze()
        asyncio.get_running_loop().call_later(3.3, worker.thaw)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["attempts"] == 2
        assert counters(router).get("dropped.old_attempt", 0) > 0 or who == "p"

    scenario(0.01 if who == "p" else 0.1, fault, check=check, knobs={"step_s": 0.05})


def test_restarted_worker_is_another_epoch_and_its_former_rows_are_resumed() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[d].kill()
        cluster.start_worker(d)

    scenario(0.1, fault, ("p0", "d0"))
