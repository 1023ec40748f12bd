"""What an agent takes for a proof, and whose word its controller takes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_AGENT = "tests/deploy/agent/test_agent.py::"
_ANEW = "tests/deploy/agent/test_hosts_made_anew.py::"
_EXECUTOR = "tests/deploy/kubernetes/test_executor.py::"
_KEDA = "tests/deploy/kubernetes/test_keda.py::"
_LEASE = "tests/deploy/kubernetes/test_lease.py::"
_LAUNCHER = "tests/deploy/agent/test_agent_launcher.py::"
_UNREAD = "tests/deploy/agent/test_unread_evidence.py::"

HOSTS = (
    Mutant(
        "term",
        "deploy/agent/term.py",
        "if self.highest is not None and term.number <= self.highest.number:",
        "if False:",
        (_AGENT + "test_term_outlives_the_agent_and_only_rises",),
    ),
    Mutant(
        "term at the end",
        "deploy/agent/agent.py",
        "if term != self.terms.highest:",
        "if False:",
        (_AGENT + "test_start_that_ends_under_a_higher_term_leaves_nothing",),
    ),
    Mutant(
        "last start",
        "deploy/agent/agent.py",
        "if self._is_ending():",
        "if False:",
        (_AGENT + "test_agent_that_ends_all_leaves_nothing_and_starts_nothing_more",),
    ),
    Mutant(
        "up in a stop",
        "deploy/agent/agent.py",
        "if self._is_ending():",
        "if False:",
        (_ANEW + "test_what_comes_up_in_the_moment_of_a_stop_is_ended",),
    ),
    Mutant(
        "another pod of the name",
        "deploy/agent/agent.py",
        "if self.config.host_uid:",
        "if False:",
        (_ANEW + "test_a_pod_proves_nothing_of_an_earlier_one_of_its_name",),
    ),
    Mutant(
        "unread evidence",
        "deploy/agent/agent.py",
        "if unread.exists():",
        "if False:",
        (_UNREAD + "test_a_process_whose_evidence_cannot_be_read_is_never_called_absent",),
    ),
    Mutant(
        "own PID namespace",
        "deploy/agent/agent.py",
        "if evidence.pid_namespace != pid_namespace():",
        "if False:",
        (_AGENT + "test_evidence_of_another_pid_namespace_proves_nothing",),
    ),
    Mutant(
        "own boot",
        "deploy/agent/agent.py",
        "if evidence.boot_id != self.boot_id:",
        "if False:",
        (_AGENT + "test_evidence_of_an_older_boot_is_a_proof_of_class_b",),
    ),
    Mutant(
        "start ticks",
        "kvtransfer/link/process_identity.py",
        "if start_ticks(pid) != ticks:",
        "if False:",
        (_AGENT + "test_process_that_has_the_pid_of_an_ended_one_is_left_alone",),
    ),
    Mutant(
        "a host that answers",
        "deploy/agent/switch.py",
        "if boot_id:",
        "if False:",
        (_LAUNCHER + "test_operator_is_not_believed_of_a_host_that_answers",),
    ),
    Mutant(
        "a host that was made anew",
        "deploy/agent/switch.py",
        "if not await link.until_boot(boot_id):",
        "if False:",
        (_LAUNCHER + "test_operator_is_believed_of_a_pod_whose_successor_came_a_moment_ago",),
    ),
    Mutant(
        "a host that answers with an error",
        "deploy/agent/switch.py",
        "if error.code() not in _SILENCE:",
        "if False:",
        (
            "tests/deploy/agent/test_switch.py::"
            "test_operator_is_not_believed_of_a_host_that_answers_with_an_error",
        ),
    ),
    Mutant(
        "fence command",
        "deploy/agent/switch.py",
        "if code:",
        "if False:",
        (_LAUNCHER + "test_fence_command_that_fails_proves_nothing",),
    ),
    Mutant(
        "zombie",
        "deploy/agent/host_link.py",
        "if (process.name, process.epoch, process.pid) in self._declared:",
        "if False:",
        (_LAUNCHER + "test_fence_command_that_says_off_is_a_proof_of_class_c",),
    ),
    Mutant(
        "an empty host",
        "deploy/agent/host_link.py",
        "if self._is_empty:",
        "if self.host.made is not None:",
        (_EXECUTOR + "test_a_pod_that_may_run_what_an_earlier_controller_wanted_is_not_empty",),
    ),
    Mutant(
        "another pod",
        "deploy/agent/host_link.py",
        "if is_another and not self.is_another_pod_than(before):",
        "if is_another:",
        (_EXECUTOR + "test_a_new_pod_of_the_same_name_proves_nothing_of_the_old_one",),
    ),
    Mutant(
        "nothing is desired so far",
        "deploy/kubernetes/executor.py",
        "if self._made.wanted is None:",
        "if False:",
        (_EXECUTOR + "test_nothing_is_scaled_before_it_is_known_what_is_desired",),
    ),
    Mutant(
        "out of service",
        "deploy/kubernetes/executor.py",
        "if OUT_OF_SERVICE in taints:",
        "if taints:",
        (_EXECUTOR + "test_a_pod_deleted_by_force_proves_nothing_until_its_node_is_out",),
    ),
    Mutant(
        "KEDA keeps what there is",
        "deploy/kubernetes/keda.py",
        "if self._made.wanted is None:",
        "if False:",
        (_KEDA + "test_keda_changes_nothing_where_no_size_is_known",),
    ),
    Mutant(
        "the one controller answers",
        "deploy/kubernetes/keda.py",
        "if not self._may_act():",
        "if False:",
        (_KEDA + "test_keda_changes_nothing_while_another_controller_may_have_taken_over",),
    ),
    Mutant(
        "the one controller",
        "deploy/kubernetes/executor.py",
        "if now.replicas == n or not self._may_act():",
        "if now.replicas == n:",
        (_EXECUTOR + "test_a_controller_that_may_not_act_changes_nothing",),
    ),
    Mutant(
        "another's",
        "deploy/kubernetes/lease.py",
        'if found is not None and found.holder not in ("", self.holder):',
        "if False:",
        (_LEASE + "test_a_controller_that_was_frozen_does_not_hold_it_and_is_deposed",),
    ),
    Mutant(
        "another's Lease lasts",
        "deploy/kubernetes/lease.py",
        "if began_s < self._others[1] + found.lasts_s:",
        "if False:",
        (_LEASE + "test_a_second_controller_waits_until_the_first_one_has_ended",),
    ),
    Mutant(
        "what runs on a lost node",
        "deploy/ray_cluster/made_nodes.py",
        "if node.node_id not in ids and name in empty:",
        "if node.node_id not in ids:",
        (
            "tests/deploy/ray_cluster/test_made_nodes.py::"
            "test_a_lost_node_gets_no_successor_while_something_may_run_there",
        ),
    ),
    Mutant(
        "the last agent",
        "deploy/ray_cluster/agents.py",
        "if self._is_over:",
        "if False:",
        (
            "tests/deploy/ray_cluster/test_agents_end.py::"
            "test_no_agent_is_started_when_the_cluster_has_ended",
        ),
    ),
    Mutant(
        "own key",
        "twolane/security/certs.py",
        "if not found.is_signature_valid:",
        "if False:",
        (
            "tests/twolane/security/test_cert_requests.py::"
            "test_a_request_that_was_changed_on_its_way_is_refused",
        ),
    ),
    Mutant(
        "the authority's key",
        "twolane/security/certs.py",
        "if loaded.cert.public_key() != loaded.key.public_key():",
        "if False:",
        (
            "tests/twolane/security/test_certs.py::"
            "test_an_authority_whose_key_is_anothers_issues_nothing",
        ),
    ),
    Mutant(
        "another key beside",
        "twolane/security/certs.py",
        "if not fits:",
        "if False:",
        (
            "tests/twolane/security/test_cert_requests.py::test_a_request_beside_another_key_is_not_signed",
        ),
    ),
)
