"""Nothing that a test draws differs from run to run, unless it asks for that."""

from __future__ import annotations

import random
import zlib

import pytest
import torch
from hypothesis import settings


def test_draws_begin_with_the_seed_of_the_tests_name(request: pytest.FixtureRequest) -> None:
    seed = zlib.crc32(request.node.nodeid.encode())
    source = torch.Generator().manual_seed(seed)
    assert random.random() == random.Random(seed).random()
    assert torch.equal(torch.rand(4), torch.rand(4, generator=source))


def test_examples_are_the_same_in_every_run_but_in_fresh_ones() -> None:
    assert settings.get_profile("same").derandomize
    assert settings.default is not None
    assert settings.default.derandomize is not (settings.get_current_profile_name() == "fresh")
