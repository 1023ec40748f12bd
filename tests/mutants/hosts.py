"""What an agent takes for a proof, and whose word its controller takes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_AGENT = "tests/deploy/agent/test_agent.py::"
_LAUNCHER = "tests/deploy/agent/test_agent_launcher.py::"

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
        "if self._starts_no_more:",
        "if False:",
        (_AGENT + "test_agent_that_ends_all_leaves_nothing_and_starts_nothing_more",),
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
        "deploy/agent/launcher.py",
        "if link.state is HostState.UP and await self._answers(link):",
        "if False:",
        (_LAUNCHER + "test_operator_is_not_believed_of_a_host_that_answers",),
    ),
    Mutant(
        "fence command",
        "deploy/agent/launcher.py",
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
            "tests/twolane/security/test_certs.py::"
            "test_a_request_that_was_changed_on_its_way_is_refused",
        ),
    ),
)
