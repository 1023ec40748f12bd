"""Lists of test files, here and in the Makefile, name files that exist."""

from __future__ import annotations

import re

import pytest

from tests.dealing import KERNELS, LONG, ROOT, unit_of


@pytest.mark.parametrize("unit", LONG)
def test_each_long_unit_is_there(unit: str) -> None:
    assert (ROOT / unit).exists()


def test_tests_of_kernels_stay_in_one_process_and_others_with_their_file() -> None:
    assert unit_of(f"{KERNELS}/rows/test_sample.py::test_a[b::c]") == KERNELS
    assert unit_of("tests/checks/test_words.py::test_a[b::c]") == "tests/checks/test_words.py"


def listed(name: str) -> list[str]:
    """The paths of a variable of the Makefile."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    found = re.search(rf"^{name} := (.*)$", text, re.MULTILINE)
    assert found
    patterns = re.findall(r"tests/[\w/*.]+", found[1])
    paths = {pattern: sorted(ROOT.glob(pattern)) for pattern in patterns}
    assert all(paths.values()), [pattern for pattern in patterns if not paths[pattern]]
    return [str(path.relative_to(ROOT)) for each in paths.values() for path in each]


def test_files_left_out_of_the_quick_tests_exist_and_are_among_their_folders() -> None:
    fast = listed("FAST")
    assert [path for path in listed("SLOW") if not path.startswith(tuple(fast))] == []
