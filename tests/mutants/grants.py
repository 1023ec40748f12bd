"""Guards of grants: whose word frees pages, and which words a receiver believes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_GRANTS = "tests/kvtransfer/test_grant_guards.py::"
_SOCKET = "tests/kvtransfer/link/test_done_socket.py::"

GRANTS = (
    Mutant(
        "hashes",
        "kvtransfer/receive/inbound.py",
        "return self._hashes is None or told == list(self._hashes[: len(told)])",
        "return True",
        (
            "tests/worker/test_wrong_hashes.py::"
            "test_reserve_with_the_hashes_of_another_prompt_fails_its_row_alone",
        ),
    ),
    Mutant(
        "one host",
        "kvtransfer/receive/driver.py",
        "if ours is not None and ours.address and is_near:",
        "if ours is not None and ours.address:",
        (
            "tests/kvtransfer/test_far_senders.py::"
            "test_rows_of_a_sender_elsewhere_come_encrypted_though_both_know_quicker_ways",
        ),
    ),
    Mutant(
        "key of a link",
        "kvtransfer/link/done_socket.py",
        "if epoch is None:",
        "if epoch is None and not (epoch := next(iter(self._epochs.values()), None)):",
        (_SOCKET + "test_who_has_no_key_is_not_heard",),
    ),
    Mutant(
        "over with its link",
        "kvtransfer/receive/driver.py",
        "self._done_socket.forget(answer.done_key)",
        "pass",
        ("tests/kvtransfer/test_processes.py::test_a_key_is_forgotten_with_its_link",),
    ),
    Mutant(
        "writer's proof",
        "kvtransfer/receive/grant_book.py",
        "is_proven = grant.landing.sender_writes",
        "is_proven = True",
        (_GRANTS + "test_the_senders_word_does_not_free_pages_that_this_process_may_still_write",),
    ),
    Mutant(
        "whose grant",
        "kvtransfer/receive/receiver.py",
        "if grant is None or grant.key != key:",
        "if grant is None:",
        (_GRANTS + "test_drained_of_another_transfer_does_not_free_the_pages_of_this_one",),
    ),
    Mutant(
        "quarantine cap",
        "kvtransfer/receive/receiver.py",
        "if self._book.is_at_cap:",
        "if False:",
        (_GRANTS + "test_reservation_that_was_queued_before_the_quarantine_was_full_waits_too",),
    ),
    Mutant(
        "tombstone",
        "kvtransfer/receive/receiver.py",
        "if key not in self._tombstones:",
        "if False:",
        (_GRANTS + "test_assign_and_reserve_that_come_after_abandon_get_no_pages",),
    ),
    Mutant(
        "once",
        "kvtransfer/receive/grant.py",
        "if self._announced[first : first + n].any():",
        "if False:",
        (_GRANTS + "test_page_that_is_announced_twice_keeps_the_checksum_of_the_first",),
    ),
    Mutant(
        "whole",
        "kvtransfer/receive/inbound.py",
        "elif done.n_bytes != len(grant.pages) * self._hub.page_bytes:",
        "elif False:",
        (_GRANTS + "test_done_of_another_number_of_bytes_lands_nothing",),
    ),
    Mutant(
        "bounded pass",
        "kvtransfer/receive/inbound.py",
        "return self.n_passed_pages + other.n_pages <= self.n_pages",
        "return True",
        (_GRANTS + "test_those_that_pass_a_head_take_no_more_pages_than_it_asks_for",),
    ),
    Mutant(
        "old attempt",
        "router/requests/attempt.py",
        "is_mine = key.attempt == self.key.attempt",
        "is_mine = True",
        (
            "tests/router/requests/test_attempt.py::"
            "test_decode_worker_does_not_speak_of_the_attempt_under_an_earlier_number",
        ),
    ),
)
