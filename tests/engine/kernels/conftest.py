"""Kernels in Triton's interpreter, on the CPU: small cases, in float32 and float16.

The interpreter's bfloat16 products are wrong; those, and large shapes, are checked on a card, in
tests/gpu. Kernels in Gluon or with inline assembly cannot be interpreted: their builds are checked
in test_builds.py, and the kernel in plain Triton that they stand in for is interpreted here.
"""

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

# Triton 3.6's interpreter does this; numpy below 2.4 still allows it.
NUMPY = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
LAST = "test_coverage.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings(NUMPY))
    items.sort(key=lambda item: str(item.path) == os.path.join(here, LAST))


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> Iterator[set[str]]:
    """Names of the kernels that this folder's tests have run so far."""
    from triton.runtime.interpreter import InterpretedFunction

    names: set[str] = set()
    run = InterpretedFunction.run

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        names.add(self.fn.__name__)
        run(self, *args, **kwargs)

    with mock.patch.object(InterpretedFunction, "run", noted):
        yield names


@pytest.fixture(autouse=True)
def sound_casts() -> Iterator[None]:
    from tests.engine.interpreter import sound_fp8_casts

    with sound_fp8_casts():
        yield
