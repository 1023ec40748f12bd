"""Kernels in Triton's interpreter, on the CPU: small cases, in float32 and float16.

The interpreter's bfloat16 products are wrong; those, and large shapes, are checked on a card, in
tests/gpu.
"""

import os

import pytest

# Triton 3.6's interpreter does this; numpy below 2.4 still allows it.
NUMPY = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings(NUMPY))
