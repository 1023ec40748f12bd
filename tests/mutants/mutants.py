"""Guards that are taken away one by one, and the tests that must notice.

In the code a guard carries the comment `# guard: NAME`; every such line under the packages must
have an entry here. Append yours: `find` is the guard's line as it stands in the file, without
indentation and comment; `replace` is what the line becomes.
"""

from __future__ import annotations

from tests.mutants.access import ACCESS
from tests.mutants.acts import ACTS
from tests.mutants.grants import GRANTS
from tests.mutants.hosts import HOSTS
from tests.mutants.in_time import IN_TIME
from tests.mutants.marks import MARKS
from tests.mutants.mutant import Mutant
from tests.mutants.nixl import NIXL
from tests.mutants.page_lanes import PAGE_LANES
from tests.mutants.takeover import TAKEOVER

REQUIRED = ("generation", "epoch", "checksum", "drain wait", "pin", "tombstone", "token index")
_GUARDS = "tests/kvtransfer/test_guards.py::"
_DEVICES = "tests/kvtransfer/test_device_transports.py::"
_OWNERSHIP = "tests/worker/test_ownership.py::"
_STORM = "tests/worker/test_chaos.py::test_storm_changes_no_answer_and_leaves_nothing_behind"
_DRAIN = "tests/worker/test_drain.py::"
_LOADING = "tests/engine/kernels/test_loading.py::"
_SIDE_BY_SIDE = (
    "tests/engine/cuda/test_driver.py::test_copies_side_by_side_come_after_what_was_given_"
)

MUTANTS = (
    *ACCESS,
    *ACTS,
    *HOSTS,
    *IN_TIME,
    *TAKEOVER,
    *GRANTS,
    *MARKS,
    *NIXL,
    *PAGE_LANES,
    Mutant(
        "generation",
        "kvtransfer/receive/inbound.py",
        "if ticket.generation != self.grant.generation:",
        "if False:",
        (_GUARDS + "test_late_chunk_and_done_of_an_earlier_generation_are_not_believed",),
    ),
    Mutant(
        "generation",
        "kvtransfer/send/outbound.py",
        "if generation < self._floor:",
        "if False:",
        (_GUARDS + "test_late_reserved_of_a_drained_ticket_is_not_written_to",),
    ),
    Mutant(
        "generation",
        "kvtransfer/send/outbound.py",
        "elif not self._is_current(commit.ticket):",
        "elif False:",
        (_GUARDS + "test_commit_of_an_earlier_generation_does_not_unpin",),
    ),
    Mutant(
        "generation",
        "kvtransfer/transports/common/claims.py",
        "entry = self._entries.get(generation)",
        "entry = self._entries.get(generation) or next(iter(self._entries.values()), None)",
        (_GUARDS + "test_bytes_of_an_earlier_generation_do_not_land_in_pages_granted_anew",),
    ),
    Mutant(
        "epoch",
        "kvtransfer/receive/receiver.py",
        "if key.sender_epoch != epoch or key.receiver_epoch != self.epoch:",
        "if False:",
        (_GUARDS + "test_receiver_drops_and_counts_messages_of_another_incarnation",),
    ),
    Mutant(
        "epoch",
        "kvtransfer/receive/driver.py",
        "if hello.receiver_epoch not in (0, answer.epoch):",
        "if False:",
        (
            "tests/kvtransfer/test_redials.py::"
            "test_hello_to_a_former_incarnation_does_not_cut_the_link_to_this_one",
        ),
    ),
    Mutant(
        "epoch",
        "kvtransfer/send/sender.py",
        "if key.sender_epoch != self.epoch or key.receiver_epoch != epoch:",
        "if False:",
        (_GUARDS + "test_sender_drops_and_counts_messages_of_another_incarnation",),
    ),
    Mutant(
        "epoch",
        "kvtransfer/transports/common/claims.py",
        "if entry.sender_epoch != sender_epoch:",
        "if False:",
        (_GUARDS + "test_bytes_of_a_sender_without_the_grant_do_not_land",),
    ),
    Mutant(
        "checksum",
        "kvtransfer/receive/grant.py",
        "if differs.any():",
        "if False:",
        (_GUARDS + "test_page_with_a_wrong_checksum_never_lands", _STORM),
    ),
    Mutant(
        "drain wait",
        "kvtransfer/receive/grant_book.py",
        "if not is_proven:",
        "if False:",
        (
            _GUARDS
            + "test_destination_pages_are_not_free_before_the_sender_says_that_it_is_drained",
        ),
    ),
    Mutant(
        "drain wait",
        "kvtransfer/send/outbound.py",
        "if self.in_flight:",
        "if False:",
        (_GUARDS + "test_sender_answers_drained_only_after_its_last_write",),
    ),
    Mutant(
        "pin",
        "kvtransfer/send/outbound.py",
        "if self.in_flight:",
        "if False:",
        (_GUARDS + "test_source_page_stays_pinned_until_its_send_completes",),
    ),
    Mutant(
        "pin",
        "kvtransfer/send/outbound.py",
        "self._hub.pages.pin(pages)",
        "pass",
        (_GUARDS + "test_offered_page_keeps_its_content_when_the_prefill_role_lets_go",),
    ),
    Mutant(
        "tombstone",
        "kvtransfer/receive/receiver.py",
        "if key in self._tombstones:",
        "if False:",
        (_GUARDS + "test_late_assign_and_reserve_of_a_cancelled_key_get_no_pages",),
    ),
    Mutant(
        "tombstone",
        "kvtransfer/receive/receiver.py",
        "if self._is_buried(key):",
        "if False:",
        (_GUARDS + "test_late_assign_and_reserve_of_a_cancelled_key_get_no_pages",),
    ),
    Mutant(
        "given up",
        "kvtransfer/receive/receiver.py",
        "if inbound is None:",
        "if False:",
        (
            _GUARDS + "test_row_that_was_given_up_after_it_landed_is_not_taken",
            "tests/worker/test_losses.py::test_decode_worker_outlives_a_row_given_up_in_mid_step",
        ),
    ),
    Mutant(
        "range",
        "kvtransfer/transports/common/claims.py",
        "if n < 1 or first < 0 or first + n > entry.pages.size:",
        "if False:",
        (_GUARDS + "test_bytes_outside_of_the_grant_do_not_land",),
    ),
    Mutant(
        "once",
        "kvtransfer/transports/common/claims.py",
        "if entry.claimed[first : first + n].any():",
        "if False:",
        (_GUARDS + "test_landed_page_is_not_written_again_by_a_repeat",),
    ),
    Mutant(
        "token index",
        "router/dispatch/events.py",
        "if index != len(request.answer.tokens):",
        "if False:",
        (
            "tests/router/test_failures.py::test_token_said_twice_is_streamed_once",
            "tests/router/test_failures.py::"
            "test_two_workers_that_disagree_on_a_token_fail_the_attempt",
        ),
    ),
    Mutant(
        "row teller",
        "router/dispatch/events.py",
        "if attempt.is_over or not attempt.may_tell(row, epoch, role):",
        "if attempt.is_over:",
        (
            "tests/router/test_late_tokens.py::"
            "test_tokens_of_a_worker_that_has_not_the_row_are_dropped",
        ),
    ),
    Mutant(
        "owner",
        "worker/attempts/registry.py",
        "if log.owner != owner:",
        "if False:",
        (_OWNERSHIP + "test_cancel_of_another_router_stops_nothing",),
    ),
    Mutant(
        "owner",
        "worker/commands.py",
        "if log is None or log.owner == session.owner:",
        "if True:",
        (
            _OWNERSHIP + "test_attach_of_another_router_hears_no_token",
            _OWNERSHIP + "test_retarget_of_another_router_moves_nothing",
        ),
    ),
    Mutant(
        "label",
        "worker/attempts/registry.py",
        "if self._labels.is_held_by_other(log.claim):",
        "if False:",
        (
            _OWNERSHIP + "test_second_request_under_a_running_label_is_refused_at_once",
            "tests/cluster/test_two_routers.py::"
            "test_one_id_at_two_routers_is_answered_by_one_and_refused_by_the_other_at_once",
        ),
    ),
    Mutant(
        "router id",
        "worker/sessions/sessions.py",
        "if former.owner == owner or silent_s >= self._config.suspicion_s:",
        "if True:",
        (
            _OWNERSHIP + "test_two_live_routers_of_one_name_do_not_throw_each_other_out",
            "tests/cluster/test_two_routers.py::"
            "test_second_router_of_the_same_id_disturbs_no_request_of_the_first",
        ),
    ),
    Mutant(
        "freed pages",
        "worker/sessions/sessions.py",
        "frees_pages = any(event.kind in FREES_PAGES for event in rows)",
        "frees_pages = False",
        (
            "tests/worker/test_load_in_time.py::test_end_of_one_row_among_others_comes_with_its_pages",
        ),
    ),
    Mutant(
        "stalled pair",
        "router/dispatch/recovery.py",
        "self.avoid(request, attempt.prefill_epoch, attempt.decode_epoch)",
        "pass",
        (
            "tests/router/test_failures.py::"
            "test_attempt_that_stands_still_is_made_again_on_two_other_workers",
        ),
    ),
    Mutant(
        "hang-up",
        "router/doors/http/answering.py",
        'tasks.start(_wait_hangup(receive), name="http-hangup")',
        "pass",
        (
            "tests/router/doors/http/test_server.py::test_a_client_that_hangs_up_frees_both_workers",
            "tests/router/doors/http/test_server.py::"
            "test_a_client_that_hangs_up_before_its_first_token_frees_the_prefill_worker",
        ),
    ),
    Mutant(
        "during a step",
        "worker/page_returns.py",
        "if self._n_done == self._n_submitted:",
        "if True:",
        (
            "tests/worker/test_page_returns.py::"
            "test_pages_wait_for_the_last_step_that_was_submitted_before",
            "tests/decode_worker/test_role.py::"
            "test_pages_of_a_row_cancelled_amid_a_step_stay_until_that_step_is_done",
            _STORM,
        ),
    ),
    Mutant(
        "device copies",
        "kvtransfer/transports/stream/device_destination.py",
        "return any(number in (generation, 0) for number in writes)",
        "return False",
        (_DEVICES + "test_stopped_comes_only_when_no_copy_to_the_device_is_under_way",),
    ),
    Mutant(
        "slices under way",
        "kvtransfer/transports/mapped/ipc_outlet.py",
        "if job.slices:",
        "if False:",
        (_DEVICES + "test_a_cancelled_post_is_complete_only_when_its_copies_are_over",),
    ),
    Mutant(
        "pages read ahead",
        "kvtransfer/transports/stream/outlet.py",
        "self._source.settle()",
        "pass",
        (_DEVICES + "test_a_cancelled_post_is_complete_only_when_its_copies_are_over",),
    ),
    Mutant(
        "orders heard",
        "kvtransfer/transports/mapped/ipc_outlet.py",
        "self._mailbox.take_orders()",
        "pass",
        (
            _DEVICES + "test_a_post_is_called_back_though_each_slice_of_it_ends_"
            "before_the_lane_is_looked_at_twice",
        ),
    ),
    Mutant(
        "side by side",
        "engine/cuda/driver.py",
        "self._events[0].make_wait(stream)",
        "pass",
        (_SIDE_BY_SIDE + "before_and_before_what_is_given_next",),
    ),
    Mutant(
        "side by side",
        "engine/cuda/driver.py",
        "every.callback(event.make_wait, self._streams[0])",
        "pass",
        (
            _SIDE_BY_SIDE + "before_and_before_what_is_given_next",
            "tests/engine/cuda/test_driver.py::"
            "test_copies_before_one_that_is_refused_are_waited_for",
        ),
    ),
    Mutant(
        "one import of a launcher",
        "engine/kernels/loading.py",
        "with _one_import:",
        "if True:",
        (_LOADING + "test_no_thread_imports_a_launcher_while_another_one_is_taken",),
    ),
    Mutant(
        "one load",
        "engine/kernels/loading.py",
        'with kernel.__dict__.setdefault("_one_load", threading.Lock()):',
        "if True:",
        (_LOADING + "test_a_thread_that_meets_a_half_loaded_kernel_waits_for_the_rest",),
    ),
    Mutant(
        "ticket",
        "worker/drain.py",
        "if not (self._has_ticket and drain.take_ticket == self._number):",
        "if False:",
        (
            _DRAIN + "test_a_ticket_is_not_taken_before_it_is_given",
            _DRAIN + "test_a_ticket_holds_until_an_undo_and_the_next_drain_has_another",
        ),
    ),
    Mutant(
        "ticket taken",
        "worker/drain.py",
        "if not drain.enabled and self._is_taken:",
        "if False:",
        (_DRAIN + "test_a_ticket_that_was_taken_makes_the_drain_final",),
    ),
)
