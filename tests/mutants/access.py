"""Who is believed at inner ports, and who keeps a name."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MEMBERS = "tests/router/members/test_membership.py::"

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
        "twolane/security/gate.py",
        "if not hmac.compare_digest(secret.encode(), self._secret):",
        "if False:",
        (
            "tests/twolane/security/test_gate.py::"
            "test_without_the_secret_a_call_is_unauthenticated_at_once",
        ),
    ),
    Mutant(
        "roles",
        "twolane/security/gate.py",
        "if caller.role not in roles:",
        "if False:",
        (
            "tests/twolane/security/test_gate.py::"
            "test_a_method_that_is_not_in_the_table_is_for_nobody",
        ),
    ),
    Mutant(
        "worker name",
        "router/doors/worker_door.py",
        "if caller.role is Role.WORKER and caller.name != worker_id:",
        "if False:",
        ("tests/deploy/test_walk.py::test_a_worker_announces_itself_alone",),
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
)
