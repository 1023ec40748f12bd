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
        "console token",
        "twolane/security/console_tokens.py",
        "if not hmac.compare_digest(mac.encode(), self._mac(text).encode()):",
        "if False:",
        ("tests/router/doors/test_console.py::test_a_token_that_was_changed_or_is_old_is_none",),
    ),
    Mutant(
        "old console token",
        "twolane/security/console_tokens.py",
        "if now >= int(until):",
        "if False:",
        ("tests/router/doors/test_console.py::test_a_token_that_was_changed_or_is_old_is_none",),
    ),
    Mutant(
        "viewer",
        "worker/doors/services.py",
        "if is_more and self._gate.identity(context).role is Role.VIEWER:",
        "if False:",
        (
            "tests/deploy/test_viewers.py::"
            "test_a_viewer_inspects_a_worker_without_its_log_and_opens_no_connections",
        ),
    ),
    Mutant(
        "tenant",
        "router/limits.py",
        "if named and named != caller.tenant:",
        "if False:",
        ("tests/router/test_limits.py::test_tenant_may_be_repeated_and_not_chosen",),
    ),
    Mutant(
        "tenant of an id",
        "router/dispatch/board.py",
        "if request is None or request.job.tenant != tenant:",
        "if request is None:",
        (
            "tests/router/test_labels.py::"
            "test_submission_of_another_tenant_is_as_unknown_as_one_that_never_was",
        ),
    ),
    Mutant(
        "tenant of a prefix",
        "router/dispatch/affinity.py",
        "chain = hashlib.blake2b(tenant.encode(), digest_size=8)",
        "chain = hashlib.blake2b(digest_size=8)",
        ("tests/router/dispatch/test_affinity.py::test_tenants_know_no_beginning_of_each_other",),
    ),
    Mutant(
        "longest backlog",
        "router/dispatch/queue.py",
        "return theirs > backlog.length(priority, tenant, more=1)",
        "return True",
        (
            "tests/router/test_tenant_queue.py::"
            "test_full_queue_takes_a_place_from_the_longest_backlog_of_the_least_priority",
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
        "if other.keeps_its_name(now, self.config.suspicion_s):",
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
        "if len(self._members) >= self.config.most_members:",
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
)
