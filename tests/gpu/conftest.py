"""Tests that need a card: they skip by themselves where there is none, saying so."""

import pytest

try:
    import torch
    import triton  # noqa: F401

    REASON = "" if torch.cuda.is_available() else "no CUDA device"
except ImportError as error:
    REASON = f"{error.name} is not installed"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") is not None and REASON:
            item.add_marker(pytest.mark.skip(reason=REASON))
