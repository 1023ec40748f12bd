"""The GPU engine in Triton's interpreter, on the CPU: every path but graphs, with tiny models."""

import os
from collections.abc import Iterator

import pytest

# Triton 3.6's interpreter does this; numpy below 2.4 still allows it.
NUMPY = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
NAN = "ignore:invalid value encountered:RuntimeWarning"  # numpy says so where a card does not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings(NUMPY))
            item.add_marker(pytest.mark.filterwarnings(NAN))


@pytest.fixture(autouse=True)
def sound_casts() -> Iterator[None]:
    from tests.engine.interpreter import sound_fp8_casts

    with sound_fp8_casts():
        yield
