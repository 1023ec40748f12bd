"""Who is believed at inner ports, and who keeps a name."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MEMBERS = "tests/router/members/test_membership.py::"
_REPORTED = "tests/router/members/test_reported_gone.py::"

ACCESS = (
    Mutant(
        "API key",
        "twolane/security/keys.py",
        "is_right = hmac.compare_digest(digest(secret), known)",
        "is_right = True",
        (
            "tests/twolane/security/test_keys.py::"
            "test_wrong_keys_are_refused_and_the_answer_does_not_tell_a_known_id_from_another",
        ),
    ),
    Mutant(
        "secret",
        "twolane/rpc/secret.py",
        "if not details.method.startswith(_OURS) or self._knows(details):",
        "if True:",
        (
            "tests/twolane/rpc/test_secret.py::"
            "test_without_the_secret_a_call_is_unauthenticated_at_once",
        ),
    ),
    Mutant(
        "live name",
        "router/members/membership.py",
        "if other.keeps_its_name(now, self._config.suspicion_s):",
        "if False:",
        (_MEMBERS + "test_a_live_worker_keeps_its_name",),
    ),
    Mutant(
        "retired epoch",
        "router/members/membership.py",
        "if epoch in self._retired:",
        "if False:",
        (_MEMBERS + "test_new_epoch_that_answers_ends_the_old_one_for_good",),
    ),
    Mutant(
        "gone member",
        "router/members/membership.py",
        "if member.state is S.GONE:",
        "if False:",
        (_MEMBERS + "test_replaced_epoch_whose_dial_still_succeeds_does_not_end_its_successor",),
    ),
    Mutant(
        "members",
        "router/members/membership.py",
        "if len(self._members) >= self._config.most_members:",
        "if False:",
        (_MEMBERS + "test_members_are_bounded_and_known_ones_stay",),
    ),
    Mutant(
        "own host",
        "router/members/membership.py",
        "if host is not None and its is not None and its.announce.host != host:",
        "if False:",
        (_REPORTED + "test_agent_of_another_host_is_not_believed",),
    ),
    Mutant(
        "an agent's host",
        "router/doors/worker_door.py",
        "if caller.role is Role.AGENT:",
        "if False:",
        (_REPORTED + "test_agent_speaks_for_its_own_host_whatever_it_says",),
    ),
    Mutant(
        "a controller's proof",
        "router/doors/worker_door.py",
        "if caller.role is Role.CONTROLLER and request.proof_class != OFF:",
        "if False:",
        (_REPORTED + "test_controller_reports_no_proof_but_that_a_host_is_off",),
    ),
    Mutant(
        "term",
        "deploy/agent/term.py",
        "if self.highest is not None and term.number <= self.highest.number:",
        "if False:",
        ("tests/deploy/agent/test_agent.py::test_term_outlives_the_agent_and_only_rises",),
    ),
)
