"""Who has a submission that several routers ask for."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TAKEOVER = "tests/worker/test_takeover.py::"

TAKEOVER = (
    Mutant(
        "said again",
        "worker/drain.py",
        'if drain.HasField("begun") and self._number > drain.begun:',
        "if False:",
        (
            "tests/cluster/test_drains_of_routers.py::"
            "test_router_that_comes_back_repeats_no_undo_of_a_drain_that_is_over",
        ),
    ),
    Mutant(
        "fence",
        "worker/attempts/takeover.py",
        "return log.fence > fence or (log.fence == fence and log.owner != owner)",
        "return False",
        (
            _TAKEOVER + "test_of_two_adopters_the_higher_fence_has_it_and_an_equal_one_of_another"
            "_router_not",
        ),
    ),
    Mutant(
        "resume hash",
        "worker/attempts/takeover.py",
        "return bool(hash_) and is_shown and tenant == wanted.tenant",
        "return True",
        (
            _TAKEOVER + "test_wrong_hash_another_tenant_and_no_fence_adopt_nothing",
            _TAKEOVER + "test_row_without_a_hash_can_be_adopted_by_nobody",
        ),
    ),
    Mutant(
        "same submission",
        "worker/attempts/takeover.py",
        "return is_shown and ours.tenant == theirs.tenant",
        "return True",
        (_TAKEOVER + "test_new_attempt_of_another_token_bars_itself_whatever_its_fence",),
    ),
    Mutant(
        "barred assign",
        "worker/commands.py",
        "if takeover.is_barred(self._registry, log):",
        "if False:",
        (_TAKEOVER + "test_new_attempt_of_another_token_bars_itself_whatever_its_fence",),
    ),
    Mutant(
        "past fence",
        "worker/attempts/takeover.py",
        "if registry.past_fence(submission_id) > log.fence:",
        "if False:",
        (_TAKEOVER + "test_router_that_was_away_for_longer_than_logs_are_kept_begins_nothing",),
    ),
    Mutant(
        "outranked",
        "worker/commands.py",
        "for former in takeover.outranked(self._registry, log):",
        "for former in ():",
        (_TAKEOVER + "test_new_attempt_under_a_higher_fence_ends_what_ran_under_lower_ones",),
    ),
    Mutant(
        "adopted owner",
        "worker/attempts/takeover.py",
        "log.hand_to(owner, wanted.fence, now)",
        "pass",
        (
            _TAKEOVER + "test_adopter_goes_on_where_the_first_router_was_which_hears_that_it_was"
            "_taken",
            "tests/cluster/test_takeover.py::"
            "test_killed_routers_answer_goes_on_without_a_new_attempt",
        ),
    ),
    Mutant(
        "own suspicion",
        "decode_worker/role.py",
        "return asks in (None, owner)",
        "return True",
        (
            _TAKEOVER + "test_one_routers_suspicion_of_a_prefill_worker_ends_no_row_of_another"
            "_router",
        ),
    ),
    Mutant(
        "own numbers",
        "twolane/attempt_number.py",
        "if fence_of(number) < fence:",
        "if False:",
        (
            "tests/twolane/test_attempt_number.py::"
            "test_router_that_took_a_request_over_names_its_tries_above_all_that_came_before",
            "tests/cluster/test_takeover.py::"
            "test_attempts_after_a_takeover_have_names_of_their_own",
        ),
    ),
    Mutant(
        "taken",
        "router/dispatch/endings.py",
        "self._board.cancel_later(epoch, attempt.key, now + within_s)",
        "self._board.cancel(epoch, attempt.key.submission_id, attempt.key.attempt)",
        (
            "tests/router/test_taken.py::"
            "test_request_that_another_router_has_taken_ends_and_its_rows_are_left_to_that_router",
        ),
    ),
)
