"""No kernel without a test: this comes last, and looks at what the others have run."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.engine.kernels.entries import entry_kernels


def test_every_kernel_that_can_be_interpreted_was(
    interpreted: set[str], request: pytest.FixtureRequest
) -> None:
    ran = {item.path for item in request.session.items}
    if not ran.issuperset(Path(__file__).parent.glob("test_*.py")):
        pytest.skip("run the whole folder")
    expected = {kernel.name for kernel in entry_kernels() if kernel.is_interpretable}
    assert expected - interpreted == set()


def test_kernels_are_told_from_the_functions_that_they_call() -> None:
    found = {kernel.name: kernel.is_interpretable for kernel in entry_kernels()}
    assert found["_decode_kernel"]
    assert found["_row_kernel"]
    assert not found["overlapped_kernel"]  # in Gluon
    assert not found.keys() & {"ready", "load_plane", "_attend", "merge_items", "_task", "_fetch"}
