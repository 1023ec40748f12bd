"""Guards of what operators' acts do."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RECONCILE = "tests/deploy/controller/test_reconcile.py::"

_FLIPS = "tests/cluster/test_flips.py::"
_SIZING = "tests/deploy/controller/test_sizing.py::"
_ROLLOUT = "tests/deploy/controller/test_rollout.py::"
_POLICY = "tests/router/dispatch/test_policy.py::"
_REVISIONS = "tests/router/members/test_revisions.py::"
_POOLS = "tests/deploy/launch/test_pools.py::"
_ASKED_AGAIN = (
    "tests/deploy/agent/test_revisions.py::"
    "test_a_host_is_asked_again_before_a_worker_of_the_revision_starts_there"
)
_KILLS = "tests/deploy/launch/test_kills.py::"

ACTS = (
    Mutant(
        "done before",
        "deploy/launch/operator_acts.py",
        "if former is not None:",
        "if False:",
        (_POOLS + "test_an_act_that_comes_again_under_its_id_is_answered_as_the_first_was",),
    ),
    Mutant(
        "fenced once",
        "deploy/launch/operator_acts.py",
        "if done is not None and done.proof:",
        "if False:",
        (_KILLS + "test_a_fence_that_comes_again_under_its_id_kills_no_later_incarnation",),
    ),
    Mutant(
        "no process to fence",
        "deploy/launch/operator_acts.py",
        "if epoch == 0:",
        "if False:",
        (_KILLS + "test_a_fence_without_proof_is_tried_again_on_the_same_incarnation_alone",),
    ),
    Mutant(
        "another epoch",
        "deploy/launch/supervisor.py",
        "if epoch not in (0, handle.epoch):",
        "if False:",
        ("tests/deploy/test_up_supervisor_events.py::test_only_the_epoch_that_is_named_is_fenced",),
    ),
    Mutant(
        "dry run",
        "deploy/launch/operator_acts.py",
        "if act.dry_run:",
        "if False:",
        (_POOLS + "test_a_dry_run_says_all_and_does_nothing",),
    ),
    Mutant(
        "configuration",
        "deploy/launch/operator_acts.py",
        "if request.revision <= desired.config_revision:",
        "if False:",
        (_POOLS + "test_settings_are_kept_for_the_routers_of_the_next_controller",),
    ),
    Mutant(
        "hosts not asked",
        "deploy/controller/rollout_acts.py",
        "if fit is None:",
        "if False:",
        (
            "tests/deploy/launch/test_rollouts.py::"
            "test_hosts_that_were_not_asked_let_no_rollout_begin",
        ),
    ),
    Mutant(
        "hosts since then",
        "deploy/launch/operator_acts.py",
        "has_all = hosts >= _loading(desired)",
        "has_all = True",
        (
            "tests/deploy/launch/test_rollouts.py::"
            "test_a_host_that_gets_a_worker_while_the_others_are_asked_lets_no_rollout_begin",
        ),
    ),
    Mutant(
        "other files",
        "deploy/agent/revisions.py",
        "if fit.fingerprint and fit.fingerprint != spec.fingerprint:",
        "if False:",
        (_ASKED_AGAIN,),
    ),
    Mutant(
        "hosts that have come since",
        "deploy/agent/revisions.py",
        "if why_not:",
        "if False:",
        (_ASKED_AGAIN,),
    ),
    Mutant(
        "one thread",
        "deploy/spec/revision.py",
        "while _latest is not None and not _latest.revision.done():",
        "while False:",
        (
            "tests/deploy/spec/test_revision.py::"
            "test_disk_that_hangs_is_an_answer_and_keeps_one_thread",
            "tests/deploy/spec/test_revision.py::test_readings_wait_for_each_other",
        ),
    ),
    Mutant(
        "ticket before the end",
        "deploy/controller/reconcile.py",
        "if seen.is_taken:",
        "if seen.draining:",
        (
            _RECONCILE + "test_random_acts_and_deaths_of_controllers_end_as_desired_and_never_"
            "beyond_the_seats",
        ),
    ),
    Mutant(
        "taken",
        "deploy/controller/reconcile.py",
        "if not removal.kill and seen.phase is Phase.RUNNING and not seen.is_taken:",
        "if not removal.kill and seen.phase is Phase.RUNNING:",
        (_RECONCILE + "test_whose_ticket_is_taken_goes_and_another_one_comes",),
    ),
    Mutant(
        "able",
        "worker/offered_roles.py",
        "if not roles or not {*roles} <= {*self.able}:",
        "if not roles:",
        (_FLIPS + "test_worker_that_cannot_take_a_role_keeps_its_own",),
    ),
    Mutant(
        "budget",
        "deploy/controller/seats.py",
        "if self.most_gpus and held + max(1, pool.n_gpus) > self.most_gpus:",
        "if False:",
        (_SIZING + "test_start_takes_a_seat_and_no_more_than_the_budget_has",),
    ),
    Mutant(
        "rollout",
        "deploy/controller/acts.py",
        "if desired.rolling is not None:",
        "if False:",
        (_ROLLOUT + "test_sizes_stay_while_it_is_under_way",),
    ),
    Mutant(
        "a pair is left",
        "deploy/controller/rollout.py",
        "if is_last:",
        "if False:",
        (_ROLLOUT + "test_pools_of_one_worker_have_two_meanwhile_where_that_is_allowed",),
    ),
    Mutant(
        "one revision",
        "router/members/worker_view.py",
        "is_same_model = self.fingerprint == worker.fingerprint",
        "is_same_model = True",
        (_POLICY + "test_decode_worker_for_held_pages_is_never_an_avoided_one",),
    ),
    Mutant(
        "begun revision",
        "router/members/revisions.py",
        "if begun:",
        "if False:",
        (_REVISIONS + "test_answer_that_has_begun_stays_with_its_revision_while_a_pair_has_it",),
    ),
)
