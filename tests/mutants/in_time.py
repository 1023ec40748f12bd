"""Guards of what can still be in time, and of what waits at prefill workers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_IN_TIME = "tests/router/dispatch/test_in_time.py::"
_ROSTER = "tests/router/dispatch/test_roster.py::"

IN_TIME = (
    Mutant(
        "nothing starves",
        "router/tenants/fair_line.py",
        "is_due = self.n_passed >= IN_TIME_EACH",
        "is_due = False",
        (
            "tests/router/tenants/test_fair_line.py::"
            "test_deferred_ones_leave_last_but_one_of_them_in_eight_turns",
        ),
    ),
    Mutant(
        "deferred ones wait",
        "router/tenants/fair_line.py",
        "n_own = len(own)",
        "n_own = len(own.in_time)",
        (
            _IN_TIME + "test_expected_waits_count_what_is_deferred",
            "tests/router/tenants/test_fair_line.py::"
            "test_deferred_ones_leave_last_but_one_of_them_in_eight_turns",
        ),
    ),
    Mutant(
        "deferred ones are evicted",
        "router/tenants/backlog.py",
        "youngest.put(thing, (not is_deferred, rank))",
        "pass",
        (
            _IN_TIME + "test_a_full_queue_gives_the_place_of_one_that_is_deferred",
            "tests/router/tenants/test_backlog.py::"
            "test_a_deferred_one_gives_its_place_before_those_that_can_be_in_time",
        ),
    ),
    Mutant(
        "deferred without end",
        "router/dispatch/admission.py",
        "if not is_passed or waited_s < self._config.max_wait_s:",
        "if True:",
        (_IN_TIME + "test_what_is_deferred_is_refused_after_max_wait_if_others_go_first",),
    ),
    Mutant(
        "cold start",
        "router/dispatch/admission.py",
        "since = self._servable_since.get(request.job.model, now)",
        "since = request.queued_since",
        (_IN_TIME + "test_what_is_deferred_while_no_worker_serves_has_all_its_wait_before_it",),
    ),
    Mutant(
        "resumed place",
        "router/dispatch/admission.py",
        "if ttft_s is None or request.state is not RequestState.QUEUED:",
        "if ttft_s is None:",
        (_IN_TIME + "test_a_resumed_request_keeps_its_place_however_long_it_waits",),
    ),
    Mutant(
        "told lately",
        "router/operations.py",
        "return self._scaler if is_fresh else None",
        "return self._scaler",
        (_IN_TIME + "test_an_slo_is_forgotten_with_the_controller_that_told_it",),
    ),
    Mutant(
        "no SLO",
        "router/dispatch/roster.py",
        "has_enough=self._held_slo and is_enough,",
        "has_enough=is_enough,",
        (_ROSTER + "test_without_an_slo_the_tokens_at_a_worker_are_the_only_bound",),
    ),
    Mutant(
        "views of the bound",
        "router/dispatch/roster.py",
        "self._tally.changed.update(self._views)",
        "pass",
        (_ROSTER + "test_an_slo_bounds_what_a_router_has_at_a_worker_at_once_without_any_report",),
    ),
    Mutant(
        "one long prompt",
        "router/config.py",
        "has_next = n_prompts >= PIPELINED",
        "has_next = True",
        (_ROSTER + "test_an_slo_bounds_what_a_router_has_at_a_worker_at_once_without_any_report",),
    ),
    Mutant(
        "dry run",
        "router/operations.py",
        'if told is None or told.mode == "dry-run":',
        "if told is None:",
        (_IN_TIME + "test_what_can_be_in_time_goes_first_while_a_controller_tells_the_slo",),
    ),
    Mutant(
        "waits for workers alone",
        "router/dispatch/admission.py",
        "is_passed = queue.defer(request, is_deferred=True)",
        "is_passed = queue.defer(request, is_deferred=True) or True",
        (_IN_TIME + "test_what_nobody_goes_before_waits_as_long_as_without_an_slo",),
    ),
    Mutant(
        "others have gone",
        "router/tenants/fair_line.py",
        "return bool(turn.in_time) and turn.n_gone > gone_before",
        "return bool(turn.in_time)",
        (_IN_TIME + "test_what_is_deferred_is_not_refused_before_anybody_has_gone_before_it",),
    ),
    Mutant(
        "own pause",
        "router/dispatch/admission.py",
        "self._servable_since.clear()",
        "pass",
        (_IN_TIME + "test_a_pause_of_the_router_is_no_wait_of_what_is_deferred",),
    ),
)
