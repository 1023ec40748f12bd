"""Kernels in Triton's interpreter, on the CPU: small cases, in float32 and float16.

The interpreter is chosen when a kernel is defined, so this comes before any import of one. Its
bfloat16 products are wrong; those, and large shapes, are checked on a card, in tests/gpu.
"""

import importlib.util
import os

import pytest

if importlib.util.find_spec("triton") is None:
    REASON = "triton is not installed (pip install 'triton==3.6.*' 'numpy<2.4')"
else:
    import torch

    REASON = "a card is present: tests/gpu runs the same kernels on it"
    if not torch.cuda.is_available():
        REASON = ""
        os.environ["TRITON_INTERPRET"] = "1"

# Triton's interpreter does this; numpy below 2.4 still allows it.
NUMPY = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings(NUMPY))
            if REASON:
                item.add_marker(pytest.mark.skip(reason=REASON))
