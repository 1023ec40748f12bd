"""Guards of the nixl transport: when its senders write no more, and on which thread UCX runs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_NIXL = "tests/kvtransfer/test_nixl.py::"
_THREADS = "tests/kvtransfer/test_nixl_threads.py::"

NIXL = (
    Mutant(
        "drain wait",
        "kvtransfer/transports/nixl/landing.py",
        "for generation in self._stopping - owed:",
        "for generation in set(self._stopping):",
        (_NIXL + "test_a_revoked_sender_that_does_not_answer_loses_its_way_in_and_finds_another",),
    ),
    Mutant(
        "generation",
        "kvtransfer/transports/nixl/outlet.py",
        "if self._is_void(job.generation) or not fits:",
        "if not fits:",
        (
            _NIXL + "test_a_grant_revoked_before_its_sender_connects_is_never_written",
            _NIXL
            + "test_a_grant_revoked_later_is_stopped_by_the_senders_word_and_not_written_again",
        ),
    ),
    Mutant(
        "device entered",
        "kvtransfer/transports/nixl/landing.py",
        "self._summer.enter()",
        "pass",
        (_THREADS + "test_the_thread_that_drives_the_first_agent_has_entered_the_pages_device",),
    ),
    Mutant(
        "agent closed",
        "kvtransfer/transports/nixl/sender_connection.py",
        "self._agent.close()",
        "pass",
        (_NIXL + "test_a_dropped_sender_writes_nothing_more",),
    ),
    Mutant(
        "drain wait",
        "kvtransfer/transports/nixl/outlet.py",
        "for generation in self._owed - under_way:",
        "for generation in set(self._owed):",
        (_NIXL + "test_a_sender_says_drained_only_after_its_last_write",),
    ),
    Mutant(
        "parts under way",
        "kvtransfer/transports/nixl/outlet.py",
        "if job.n_under_way:",
        "if False:",
        (_NIXL + "test_posts_to_a_receiver_that_stands_still_end_when_called_back",),
    ),
)
