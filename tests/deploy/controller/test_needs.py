"""From load reports to how many workers each pool needs."""

from __future__ import annotations

import pytest

from tests.deploy.controller.worlds import D, P, limits
from twolane.deploy.controller.capacity import rows_within
from twolane.deploy.controller.observation import Need, Observation, Role
from twolane.deploy.controller.observer import Observer, ObserverConfig, Signals
from twolane.deploy.controller.priors import hardware

H200 = hardware("h200")
CONFIG = ObserverConfig()


class Fed:
    """An observer that saw steady traffic for a while. Rates are per second."""

    def __init__(self, prompt: float = 60_000, output: float = 20_000, **now: int) -> None:
        self.observer = Observer(H200, limits(), CONFIG)
        self.at_s = 0.0
        self._prompt, self._output = prompt, output
        self._now = now
        self.sums = Signals()
        for _ in range(150):
            self.go_on(**now)

    def go_on(
        self, seconds: float = 2.0, *, prompt: float | None = None, **now: float
    ) -> Observation:
        self.at_s += seconds
        arriving = self._prompt if prompt is None else prompt
        self.sums = Signals(
            prompt_tokens=self.sums.prompt_tokens + int(arriving * seconds),
            requests=self.sums.requests + int(arriving * seconds / 1000),
            output_tokens=self.sums.output_tokens + int(self._output * seconds),
            **now,  # type: ignore[arg-type]
        )
        return self.observer.observe(self.at_s, self.sums, ())

    def need(self, role: Role, **now: float) -> Need:
        return self.go_on(**now).needs[role]


def test_prefill_needs_the_forecast_with_headroom_over_what_one_worker_computes() -> None:
    found = Fed().need(P)
    rate = found.capacity_per_s
    assert rate == pytest.approx(0.72 * 43_700, rel=0.01)
    assert found.forecast_per_s == pytest.approx(60_000, rel=0.01)
    assert found.workers == -(-found.forecast_per_s * found.headroom // rate)
    assert found.bound_by == "rate"


def test_busy_prefill_workers_have_no_time_to_spare() -> None:
    found = Fed().need(P)
    assert found.busy == pytest.approx(60_000 / 43_700, rel=0.01)
    assert found.load == pytest.approx(found.busy / 0.72, rel=0.01)
    decode = Fed().need(D)
    assert decode.busy == decode.load > 0


def test_a_backlog_counts_while_its_oldest_prompt_waits_too_long() -> None:
    fed = Fed()
    calm = fed.need(P, waiting_tokens=500_000, waiting=300, oldest_wait_s=0.2)
    late = fed.need(P, waiting_tokens=500_000, waiting=300, oldest_wait_s=0.3)
    assert calm.bound_by == "rate"
    assert late.bound_by == "backlog"
    expected = 500_000 / CONFIG.clear_s / late.capacity_per_s
    assert late.workers - calm.workers == pytest.approx(expected, abs=1)
    assert late.workers > calm.workers


def test_prompts_without_a_place_in_decode_are_decodes_need_and_not_prefills() -> None:
    wait = {"waiting_tokens": 500_000, "waiting": 300, "oldest_wait_s": 2.0, "rows": 300}
    blamed = Fed()
    before = blamed.go_on(**wait).needs
    for _ in range(30):
        after = blamed.go_on(**wait, unplaced=40).needs
    assert after[P].workers < before[P].workers
    assert after[P].bound_by != "backlog" or after[P].workers <= after[P].soon + 1
    assert after[D].workers > before[D].workers
    assert after[D].bound_by == "rows"


def test_prompts_that_wait_are_no_load_of_decode_though_they_may_become_its_need() -> None:
    """A moment without a place, while 3,000 prompts wait for prefill, once took five workers from
    prefill for what decode did not have."""
    fed = Fed(output=20_000, waiting=3_000, waiting_tokens=9_000_000, rows=600)
    before = fed.need(D, waiting=3_000, rows=600)
    after = fed.need(D, waiting=3_000, rows=600, unplaced=10)
    assert after.workers >= before.workers + 2
    assert after.load == pytest.approx(before.load, abs=0.1)
    held = fed.need(D, rows=1_500, unplaced=300)
    assert held.load > 1.5 * before.load, "rows that are there, or computed, are"


def test_a_moment_without_a_place_blames_nobody() -> None:
    wait = {"waiting_tokens": 500_000, "waiting": 300, "oldest_wait_s": 2.0, "rows": 300}
    fed = Fed()
    before = fed.go_on(**wait).needs
    after = fed.go_on(**wait, unplaced=5).needs
    assert abs(after[P].workers - before[P].workers) <= 1


def test_decode_needs_what_its_rows_take() -> None:
    found = Fed().need(D, rows=900)
    assert found.bound_by == "rows"
    step_s = CONFIG.step_share * CONFIG.gap_s
    assert found.workers == -(-900 // rows_within(H200.decode, step_s, 1_024, H200.rows))


def test_decode_needs_what_pages_take_with_the_growth_promised() -> None:
    found = Fed().need(D, rows=10, page_tokens=int(2.5 * H200.kv_tokens * 0.9))
    assert found.bound_by == "pages"
    assert found.workers == 3


def test_decode_needs_its_answers_as_soon_as_their_prompts_come() -> None:
    fed = Fed(output=20_000)
    sums = fed.sums
    for _ in range(60):  # 60 answers/s of 333 tokens are what was written
        fed.at_s += 2
        sums = Signals(
            prompt_tokens=sums.prompt_tokens + 120_000, requests=sums.requests + 120,
            output_tokens=sums.output_tokens + 40_000, answers=sums.answers + 120,
            answer_tokens=sums.answer_tokens + 40_000,
        )  # fmt: skip
        before = fed.observer.observe(fed.at_s, sums, ()).needs[D]
    for _ in range(10):  # twice the requests; none has been answered yet
        fed.at_s += 2
        sums = Signals(
            prompt_tokens=sums.prompt_tokens + 240_000, requests=sums.requests + 240,
            output_tokens=sums.output_tokens + 40_000, answers=sums.answers + 120,
            answer_tokens=sums.answer_tokens + 40_000,
        )  # fmt: skip
        after = fed.observer.observe(fed.at_s, sums, ()).needs[D]
    assert after.forecast_per_s > 1.7 * before.forecast_per_s


def test_the_largest_need_of_four_minutes_is_kept() -> None:
    fed = Fed()
    high = fed.go_on(prompt=400_000).needs[P].workers
    for _ in range(50):
        low = fed.go_on().needs[P]
    assert low.workers < high
    assert low.kept >= high
    for _ in range(150):
        low = fed.go_on().needs[P]
    assert low.kept == low.workers


def test_what_is_needed_soon_has_no_headroom() -> None:
    found = Fed(prompt=200_000).need(P)
    assert found.soon < found.workers


def test_starts_are_expected_to_take_what_nine_in_ten_took() -> None:
    observer = Observer(H200, limits())
    assert observer.start_s == H200.start_s
    for took_s in range(10, 20):
        observer.started(float(took_s))
    assert observer.start_s == 19.0
    observer.start_failed(5.0)
    observer.start_failed(6.0)
    seen = observer.observe(10.0, Signals(), ())
    assert (seen.failed_starts, seen.failed_s) == (2, 6.0)
    observer.started(12.0)
    assert observer.observe(12.0, Signals(), ()).failed_starts == 0


def test_time_without_a_request_is_counted() -> None:
    fed = Fed()
    assert fed.go_on().idle_s == 0
    for _ in range(10):
        seen = fed.go_on(prompt=0)
    assert seen.idle_s == 20


def test_capacity_follows_the_steps_that_are_measured() -> None:
    fed = Fed()
    before = fed.need(P).capacity_per_s
    for _ in range(120):
        for _ in range(20):
            fed.observer.prefill_step(1_024, 1_024**2, 0.048)
        found = fed.need(P)
    assert found.capacity_per_s == pytest.approx(before / 2, rel=0.05)


def test_rows_that_get_several_tokens_a_step_let_one_worker_write_more() -> None:
    fed = Fed()
    before = fed.need(D)
    for _ in range(120):
        for _ in range(20):
            rows = 100
            step_s = H200.decode.step_s(rows, rows * 1_024)
            fed.observer.decode_step(rows, rows * 1_024, step_s, 2.0)
        found = fed.need(D)
    assert found.capacity_per_s == pytest.approx(2 * before.capacity_per_s, rel=0.05)
    assert found.load == pytest.approx(before.load / 2, rel=0.05)
