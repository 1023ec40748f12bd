"""Workers lie, refuse, preempt and run out of room; what the client gets is exact or typed."""

import asyncio
from typing import Any

import pytest

from twolane.errors import InternalError, UnavailableError
from twolane.router.config import AdmissionConfig, DispatchConfig, RouterConfig
from twolane.router.members.membership import RetiredEpochError
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.scenario import PROMPT, TWO_BY_TWO, N, counters, scenario
from twolane.router.testing.worker import ScriptedWorker
from twolane.testing.heard import heard
from twolane.v1 import worker_pb2


def test_token_said_twice_is_streamed_once() -> None:  # guard: token index
    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["dropped.duplicate"] >= N - 1
        assert counters(router)["attempts"] == 1

    scenario(0.001, lambda r, c, p, d: None, ("p0", "d0"), knobs={"repeats": 2}, check=check)


def test_two_workers_that_disagree_on_a_token_fail_the_attempt() -> None:  # guard: token index
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[d].wrong_at = 0  # it repeats another first token than P said
        cluster.workers[d].later(0.1, setattr, cluster.workers[d], "wrong_at", -1)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["dropped.disagreement"] >= 1
        assert counters(router)["resumes.disagreement"] >= 1

    scenario(0.001, fault, check=check)


def test_missing_token_is_asked_for_again() -> None:
    lost: list[worker_pb2.SessionResponse] = []

    def lose_one(response: Any) -> Any:
        if not lost and response.tokens and heard(response.tokens)[0].index == 7:
            lost.append(response)
            return True
        return False

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert 1 < counters(router)["dropped.gap"] < 10, "those that come before the answer"
        asked = [c for c in cluster.workers["d0"].commands if c.HasField("attach")]
        assert len(asked) == 1
        assert counters(router)["attempts"] == 1
        assert lost

    knobs = {"loses": lose_one, "step_s": 0.0002}
    scenario(0.001, lambda r, c, p, d: None, ("p0", "d0"), knobs=knobs, check=check)


def test_token_that_stays_missing_fails_the_attempt_after_a_second() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[d].loses = lambda m: any(t.index == 7 for t in heard(m.tokens))

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["resumes.missing_events"] >= 1

    scenario(0.001, fault, check=check, knobs={"step_s": 0.1})


@pytest.mark.parametrize("workers", [("p0", "d0"), ("b0",)])
def test_preempted_request_resumes_with_all_its_growth_reserved(workers: Any) -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[d].preempt_at["r"] = 10

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["resumes.preempted"] == 1
        assigns = [
            command.assign
            for command in cluster.workers[workers[-1]].commands
            if command.HasField("assign")
        ]
        assert [a.growth_tokens for a in assigns] == [8, N - 10]
        assert list(assigns[1].token_ids) == PROMPT + expected_answer(PROMPT, 10)
        assert assigns[1].n_prompt == len(PROMPT)

    config = RouterConfig(admission=AdmissionConfig(growth_reserve_tokens=8))
    scenario(0.001, fault, workers, check=check, config=config)


def test_transfer_that_finds_no_room_goes_to_another_decode_worker() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].is_full = True
        outcome = await ask(router, message(PROMPT, max_tokens=N))
        assert outcome.tokens == expected_answer(PROMPT, N)
        assert outcome.ledger.decode_worker == "d1"
        assert counters(router)["retargets"] == 1
        assert outcome.ledger.ttft_s < 0.03

    play(script, ("p0", "d0", "d1"))


def test_transfer_that_finds_no_room_anywhere_waits_for_the_worker_it_has() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        worker = cluster.workers["d0"]
        worker.is_full = True
        worker.later(2.0, setattr, worker, "is_full", False)
        outcome = await ask(router, message(PROMPT, max_tokens=N))
        assert outcome.tokens == expected_answer(PROMPT, N)
        assert outcome.ledger.attempts == 1

    play(script, ("p0", "d0"))


def test_prefill_worker_that_no_longer_has_the_pages_costs_a_full_resume() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        # P has handed over and forgotten, the router does not know it yet, and D dies
        cluster.workers[p].loses = lambda m: (
            bool(m.rows) and m.rows[0].kind == m.rows[0].KIND_HANDED_OVER
        )
        cluster.workers[d].loses = lambda m: bool(m.tokens)
        cluster.workers[d].later(0.06, cluster.workers[d].kill)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["retargets"] == 1
        assert counters(router)["attempts"] == 3

    scenario(0.001, fault, check=check)


def test_retarget_that_nobody_answers_ends_in_a_full_resume() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[d].kill()
        cluster.workers[p].freeze()
        asyncio.get_running_loop().call_later(4.0, cluster.workers[p].thaw)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["resumes.not_retargeted"] == 1

    scenario(0.025, fault, knobs={"transfer_s": 0.05}, check=check)


def test_prefill_worker_whose_session_broke_is_not_asked_to_move_a_row() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[d].kill()  # its dial fails while that of the other is under way
        asyncio.get_running_loop().call_later(0.0002, cluster.workers[p].kill)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert "retargets" not in counters(router)

    scenario(0.025, fault, knobs={"transfer_s": 0.05}, check=check)


def test_row_that_got_ahead_between_two_preemptions_has_not_failed() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        worker = cluster.workers[d]
        worker.preempt_at["r"] = 10

        def again() -> None:
            if worker.preempt_at:
                worker.later(0.001, again)
            else:
                worker.preempt_at["r"] = 20

        again()

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["resumes.preempted"] == 2

    config = RouterConfig(dispatch=DispatchConfig(max_failures=0))
    scenario(0.001, fault, ("p0", "d0"), check=check, config=config)


def test_new_decode_worker_whose_stream_is_cut_is_asked_for_tokens_not_to_move_the_row() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        cluster.workers[d].kill()
        (other,) = {"d0", "d1"} - {d}
        asyncio.get_running_loop().call_later(0.003, cluster.workers[other].cut)

    def check(router: Router, cluster: ScriptedCluster) -> None:
        everyone = [worker for worker in cluster.everyone if not worker.is_dead]
        told = {
            worker.address.worker_id[0]: {c.WhichOneof("command") for c in worker.commands}
            for worker in everyone
        }
        assert "retarget" in told["p"]
        assert "attach" in told["d"]
        assert "retarget" not in told["d"]

    def lose_confirmation(response: worker_pb2.SessionResponse) -> bool:
        return any(row.kind == row.KIND_RETARGETED for row in response.rows)

    knobs = {"transfer_s": 0.05, "loses": lose_confirmation}
    scenario(0.025, fault, ("p0", "d0", "d1"), knobs=knobs, check=check)


def test_refusal_by_one_worker_sends_the_request_to_another() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].refuses = "draining"
        outcome = await ask(router, message(PROMPT, max_tokens=N))
        assert outcome.tokens == expected_answer(PROMPT, N)
        assert counters(router)["resumes.refused.draining"] == 1

    play(script, TWO_BY_TWO)


def test_request_that_every_attempt_fails_on_gets_unavailable_with_the_last_reason() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].refuses = "mismatch"
        outcome = await ask(router, message(PROMPT, max_tokens=N))
        assert isinstance(outcome.error, UnavailableError)
        assert outcome.error.metadata == {"failures": "4", "reason": "refused.mismatch"}
        assert "4 failed attempts (at most 3)" in outcome.error.message
        assert counters(router)["attempts"] == 4

    config = RouterConfig(dispatch=DispatchConfig(max_failures=3))
    play(script, ("p0", "d0"), config=config)


def test_prefill_workers_late_word_on_a_row_that_went_over_changes_nothing() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        worker = cluster.workers[p]
        row = next(iter(worker.ended.values()))
        for kind in ("KIND_DEAD", "KIND_GONE", "KIND_FINISHED", "KIND_UNPLACED"):
            worker.say(rows=[row.row_event(getattr(row.news, kind), worker_pb2.ROLE_PREFILL)])

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["attempts"] == 1

    scenario(0.1, fault, check=check)


def test_decode_worker_that_heard_of_the_end_before_its_assign_does_not_cost_an_attempt() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        # P's first token ends the request, and D refuses the ASSIGN of a transfer given up
        cluster.workers["d0"].refuses = "cancelled"
        outcome = await ask(router, message(PROMPT, max_tokens=1))
        assert outcome.tokens == expected_answer(PROMPT, 1)
        assert counters(router)["attempts"] == 1

    play(script, ("p0", "d0"))


def test_fault_in_the_row_itself_is_told_and_not_tried_again() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["p0"].fails = "non_finite"
        outcome = await ask(router, message(PROMPT, max_tokens=N))
        assert isinstance(outcome.error, InternalError)
        assert outcome.error.metadata == {"reason": "non_finite", "worker": "p0"}
        assert counters(router)["attempts"] == 1

    play(script, TWO_BY_TWO)


def test_request_whose_workers_are_lost_waits_for_their_restart_longer_than_a_new_one() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        first = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.1)
        cluster.workers["d0"].kill()
        await asyncio.sleep(1.0)
        cluster.start_worker("d1")
        assert (await first).tokens == expected_answer(PROMPT, N)
        accepted = asyncio.create_task(ask(router, message(PROMPT, max_tokens=N)))
        await asyncio.sleep(0.1)
        cluster.workers["d1"].kill()
        killed_at = asyncio.get_running_loop().time()
        await asyncio.sleep(0.1)
        new = await ask(router, message(PROMPT, max_tokens=N))
        assert isinstance(new.error, UnavailableError)
        assert 2.0 < new.ended_at - killed_at < 2.7
        lost = await accepted
        assert isinstance(lost.error, UnavailableError)
        assert 5.0 < lost.ended_at - killed_at < 5.5

    admission = AdmissionConfig(unavailable_after_s=2.0, lost_workers_wait_s=5.0)
    config = RouterConfig(admission=admission)
    play(script, ("p0", "d0"), config=config)


def test_launchers_proof_is_passed_on_to_every_worker() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        dead: ScriptedWorker = cluster.workers["p1"]
        dead.kill()
        router.operations.report_gone(dead.epoch)
        await asyncio.sleep(0.1)
        for worker_id in ("p0", "d0", "d1"):
            gone = [c for c in cluster.workers[worker_id].commands if c.HasField("peer_gone")]
            assert [c.peer_gone.epoch for c in gone] == [dead.epoch]
        states = {w.worker.worker_id: w.state for w in router.status().workers}
        assert states["p1"] == "gone"
        with pytest.raises(RetiredEpochError):
            router.announce(dead.announce())
        states = {w.worker.worker_id: w.state for w in router.status().workers}
        assert states["p1"] == "gone", "a proven death is final"

    play(script, TWO_BY_TWO)


def test_scripted_worker_that_was_reported_dead_is_refused_and_beats_on() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))
        epoch = cluster.workers["p1"].epoch
        router.operations.report_gone(epoch)
        await asyncio.sleep(2.5)
        assert errors == []
        assert {w.worker.epoch: w.state for w in router.status().workers}[epoch] == "gone"

    play(script, TWO_BY_TWO)


def test_cancel_reaches_a_worker_whose_session_is_cut_as_soon_as_it_is_back() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        task = asyncio.create_task(ask(router, message(PROMPT, request_id="r", max_tokens=N)))
        await asyncio.sleep(0.1)
        cluster.workers["d0"].cut()
        await asyncio.sleep(0.0006)
        assert router.cancel("r")
        await task

    play(script, ("p0", "d0"), clean_after_s=0.5)


def test_attempt_that_stands_still_is_made_again_on_two_other_workers() -> None:
    """Though the first ones would be chosen: one has the prompt cached, the other one no row."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        prompt = PROMPT * 50
        asked = asyncio.create_task(ask(router, message(prompt, request_id="r", max_tokens=N)))
        await asyncio.sleep(0.1)
        (status,) = router.status().requests
        first = {status.prefill_worker, status.decode_worker}
        cluster.workers[status.decode_worker].step_s = 1e6  # it goes on to report its load
        beside = asyncio.create_task(ask(router, message([1, 2], request_id="s", max_tokens=1900)))
        await asyncio.sleep(0.1)
        assert status.decode_worker not in {
            its.decode_worker for its in router.status().requests if its.request_id == "s"
        }
        outcome = await asked
        assert not beside.done()
        assert outcome.tokens == expected_answer(prompt, N)
        assert counters(router)["resumes.stalled"] == 1
        assert not first & {outcome.ledger.prefill_worker, outcome.ledger.decode_worker}
        assert (await beside).error is None

    play(script, TWO_BY_TWO, config=RouterConfig(dispatch=DispatchConfig(stall_s=2.0)))


def test_row_that_was_given_up_for_others_pages_is_no_failure_of_its_request() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        worker = cluster.workers[p]
        (row,) = worker.rows.values()
        worker.rows.clear()
        worker.say(rows=[row.row_event(row_kinds.KIND_DEAD, worker_pb2.ROLE_PREFILL, "held")])

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["resumes.held"] == 1

    row_kinds = worker_pb2.RowEvent
    config = RouterConfig(dispatch=DispatchConfig(max_failures=0))
    scenario(0.025, fault, knobs={"transfer_s": 0.05}, check=check, config=config)


def test_colocated_row_that_is_gone_ends_its_attempt_whoever_it_was_decoded_by() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        worker = cluster.workers[p]
        (row,) = worker.rows.values()
        worker.rows.clear()
        row.phase = "ended"
        kind = worker_pb2.RowEvent.KIND_GONE
        worker.say(rows=[worker_pb2.RowEvent(key=row.assign.key, kind=kind)])  # names no role

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["resumes.row_gone"] == 1
        commands = [c.WhichOneof("command") for w in cluster.everyone for c in w.commands]
        assert "attach" not in commands, "there is nothing left to ask for"

    scenario(0.1, fault, ("b0", "b1"), check=check)


def test_row_that_has_finished_too_early_is_asked_for_the_rest_once_and_tried_again() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        worker = cluster.workers[d]
        (row,) = worker.rows.values()
        worker._end(row, worker_pb2.RowEvent.KIND_FINISHED, worker_pb2.ROLE_DECODE)
        worker.commands.clear()

    def check(router: Router, cluster: ScriptedCluster) -> None:
        assert counters(router)["resumes.row_gone"] == 1
        commands = [c.WhichOneof("command") for w in cluster.everyone for c in w.commands]
        assert commands.count("attach") == 1

    scenario(0.1, fault, check=check)
