"""Guards of marks: nothing of a page moves before the step that writes it is done."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MARKS = "tests/kvtransfer/test_marks.py::"
_MARK_BOOKS = "tests/kvtransfer/test_mark_books.py::"

MARKS = (
    Mutant(
        "mark",
        "kvtransfer/transports/mapped/ipc_outlet.py",
        "self._copy_stream.after(plan.after)",
        "pass",
        (_MARKS + "test_nothing_moves_before_the_mark_and_everything_as_it_is_then",),
    ),
    Mutant(
        "mark",
        "kvtransfer/transports/stream/source.py",
        "self._copy_stream.after(plan.after)",
        "pass",
        (
            _MARKS + "test_nothing_moves_before_the_mark_and_everything_as_it_is_then",
            _MARKS + "test_each_socket_waits_for_the_marks_of_its_own_posts",
        ),
    ),
    Mutant(
        "mark",
        "kvtransfer/transports/common/page_summer.py",
        "self._copy_stream.after(mark)",
        "pass",
        (_MARKS + "test_nothing_moves_before_the_mark_and_everything_as_it_is_then",),
    ),
    Mutant(
        "mark",
        "kvtransfer/transports/nixl/outlet.py",
        "return job.begin.is_done()",
        "return True",
        (_MARKS + "test_nothing_moves_before_the_mark_and_everything_as_it_is_then",),
    ),
    Mutant(
        "mark",
        "kvtransfer/send/grant.py",
        "after = next(found, None)",
        "after = None",
        (
            _MARK_BOOKS + "test_a_plan_waits_for_the_last_page_that_it_reads",
            "tests/worker/test_marks.py::"
            "test_pages_are_offered_before_they_are_computed_and_each_once",
        ),
    ),
    Mutant(
        "mark",
        "kvtransfer/send/outbound.py",
        "self.marks = other.marks.copy()",
        "pass",
        (
            _MARK_BOOKS + "test_a_row_that_goes_elsewhere_takes_its_marks_along",
            "tests/worker/test_marks.py::"
            "test_row_that_goes_elsewhere_amid_a_step_waits_for_its_marks_there",
        ),
    ),
)
