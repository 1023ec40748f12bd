"""The GPU engine in Triton's interpreter, on the CPU: every path but graphs, with tiny models.

The interpreter is chosen when a kernel is defined, so this comes before any import of one.
"""

import importlib.util
import os
import sys

import pytest

LATE = "something imported triton already: run with TRITON_INTERPRET=1"

if importlib.util.find_spec("triton") is None:
    REASON = "triton is not installed (pip install 'triton==3.6.*' 'numpy<2.4')"
else:
    import torch

    REASON = "a card is present: tests/gpu runs the same kernels on it"
    if not torch.cuda.is_available():
        REASON = "" if "TRITON_INTERPRET" in os.environ or "triton" not in sys.modules else LATE
        os.environ["TRITON_INTERPRET"] = "1"

# Triton's interpreter does this; numpy below 2.4 still allows it.
NUMPY = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"
NAN = "ignore:invalid value encountered:RuntimeWarning"  # numpy says so where a card does not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings(NUMPY))
            item.add_marker(pytest.mark.filterwarnings(NAN))
            if REASON:
                item.add_marker(pytest.mark.skip(reason=REASON))
