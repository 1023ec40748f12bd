"""Our own engine answers the recall benchmark as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.engine.recall_backends import TransformersBackend
from benchmarks.engine.recall_engine import EngineBackend
from twolane.engine.config import EngineConfig
from twolane.engine.testing import EOS_TOKEN, write_random_model

SEQUENCES = [[5, 6, 7, 8, 9], list(range(20, 60)), [9, 8], list(range(300, 200, -1))]


def test_both_backends_continue_and_judge_alike(tmp_path: Path) -> None:
    path = write_random_model(tmp_path, "llama", seed=4, pad_token_id=0)
    ours = EngineBackend(EngineConfig(model_dir=path, n_pages=9), 3, EOS_TOKEN)
    theirs = TransformersBackend(path, "cpu", torch.float32, 2)
    assert ours.generate(SEQUENCES, 5) == theirs.generate(SEQUENCES, 5)
    pairs = zip(ours.logprobs(SEQUENCES), theirs.logprobs(SEQUENCES), strict=True)
    for found, expected in pairs:
        assert found == pytest.approx(expected, abs=1e-3)
    ours.close()


def test_a_cache_rounded_to_fp8_changes_answers_a_little(tmp_path: Path) -> None:
    path = write_random_model(tmp_path, "llama", seed=4, pad_token_id=0)
    wide, rounded = (
        TransformersBackend(path, "cpu", torch.float32, 2, fp8_kv=fp8).logprobs(SEQUENCES)
        for fp8 in (False, True)
    )
    apart = [
        abs(a - b) for x, y in zip(wide, rounded, strict=True) for a, b in zip(x, y, strict=True)
    ]
    assert 0 < sum(apart) / len(apart) < 0.2
