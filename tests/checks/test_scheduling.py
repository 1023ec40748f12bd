"""The list of long files names what is there."""

from __future__ import annotations

import pytest

from tests.scheduling import KERNELS, LONG, ROOT, unit_of


@pytest.mark.parametrize("unit", LONG)
def test_each_long_unit_is_there(unit: str) -> None:
    assert (ROOT / unit).exists()


def test_tests_of_kernels_stay_in_one_process_and_others_with_their_file() -> None:
    assert unit_of(f"{KERNELS}/rows/test_sample.py::test_a[b::c]") == KERNELS
    assert unit_of("tests/checks/test_words.py::test_a[b::c]") == "tests/checks/test_words.py"
