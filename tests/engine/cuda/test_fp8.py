"""FP8 weights and pages in the whole engine, against the CPU engine with the same roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.cpu.model import Model
from twolane.engine.cpu.pool import KVPool
from twolane.engine.errors import EngineConfigError
from twolane.engine.model_files.architecture import read_architecture
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix
from twolane.engine.step import Engine, SampledToken
from twolane.params import SamplingParams

pytest.importorskip("triton")

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, top_logprobs=3)
PROMPT = np.random.default_rng(5).integers(3, 300, 70).tolist()
Answer = Callable[..., list[SampledToken]]


def cuda_engine(model_dir: Path, **options: Any) -> Engine:
    from twolane.engine.cuda.startup.load import load_cuda_engine

    settings = {"n_pages": 8, "exact": False, **options}
    config = EngineConfig(model_dir=model_dir, **settings)
    return load_cuda_engine(config, device=torch.device("cpu"))


def rounded(x: torch.Tensor) -> torch.Tensor:
    rows = Fp8Rows.empty(x[..., 0].numel(), x.shape[-1])
    rows.copy_(x.reshape(-1, x.shape[-1]))
    return rows.dequantise(x.dtype).view(x.shape)


def assert_close(ours: list[SampledToken], theirs: list[SampledToken], bound: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.token == other.token
        assert mine.logprob == pytest.approx(other.logprob, abs=bound)


@pytest.mark.parametrize(
    ("family", "chunk_tokens"),
    [
        pytest.param("llama", 40, marks=pytest.mark.soak),  # qwen3 is it with norms besides
        pytest.param("mistral", 40, marks=pytest.mark.soak),  # each is there with the other
        ("qwen3", 40),
        ("mistral", 31),
    ],
)
def test_answers_over_fp8_pages_are_those_of_keys_and_values_rounded_to_them(
    family: str,
    chunk_tokens: int,
    model_dir: Callable[[str], Path],
    answer: Answer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages of chunks of 32 tokens and more are widened, those of shorter ones are not."""
    write = KVPool.write

    def write_rounded(
        self: KVPool, layer: int, slots: Any, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        write(self, layer, slots, rounded(keys), rounded(values))

    engine = cuda_engine(model_dir(family), kv_dtype="fp8")
    found = answer(engine, PROMPT, GREEDY, 3, chunk_tokens=chunk_tokens)
    monkeypatch.setattr(KVPool, "write", write_rounded)
    cpu = load_engine(EngineConfig(model_dir=model_dir(family), n_pages=16))
    expected = answer(cpu, PROMPT, GREEDY, 3)
    assert_close(found, expected, 1e-2)
    # Decode rounds queries and weights to about 2**-9 each; and a value that lies between two of
    # FP8's may go to either side here and there, as sums differ in their last bits.
    theirs = [dict(token.top) for token in expected]
    errors = [
        logprob - known[other]
        for token, known in zip(found, theirs, strict=True)
        for other, logprob in token.top
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 4e-3


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_answers_of_fp8_weights_are_those_of_products_rounded_to_them(
    family: str, model_dir: Callable[[str], Path], answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = Model._linear

    def linear_rounded(
        self: Model, x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None
    ) -> torch.Tensor:
        assert isinstance(weight, torch.Tensor)
        if weight is self.weights.head:
            return linear(self, x, weight, bias)
        return linear(self, rounded(x), rounded(weight), bias)

    found = answer(
        cuda_engine(model_dir(family), weights="fp8"), PROMPT, GREEDY, 3, chunk_tokens=40
    )
    cpu = load_engine(EngineConfig(model_dir=model_dir(family), n_pages=16, exact=False))
    monkeypatch.setattr(Model, "_linear", linear_rounded)
    # A value between two of FP8's may be rounded to either, after float32 sums in another order.
    assert_close(found, answer(cpu, PROMPT, GREEDY, 3), 0.05)


def test_exact_answers_over_fp8_pages_do_not_depend_on_chunks(
    model_dir: Callable[..., Path], answer: Answer
) -> None:
    """Chunks of whole tiles: the interpreter's own products depend on a row's place in a tile."""
    model = model_dir("llama", heads=2, kv_heads=1)
    engine = cuda_engine(model, kv_dtype="fp8", exact=True)
    params = replace(GREEDY, temperature=1.0, seed=3)
    whole = answer(engine, [*PROMPT, *PROMPT], params, 2)
    assert answer(engine, [*PROMPT, *PROMPT], params, 2, chunk_tokens=128) == whole


def test_an_fp8_engine_tells_its_layout_and_fingerprint(model_dir: Callable[[str], Path]) -> None:
    wide, small = (cuda_engine(model_dir("llama"), kv_dtype=kv).spec for kv in ("auto", "fp8"))
    assert "float8_e4m3fn" in small.layout
    assert small.fingerprint == wide.fingerprint, "one can feed the other"
    exact = [cuda_engine(model_dir("llama"), kv_dtype=kv, exact=True) for kv in ("auto", "fp8")]
    assert exact[0].spec.fingerprint != exact[1].spec.fingerprint, "but not bit for bit"
    assert small.page_bytes == wide.page_bytes // 4 + 2 * 2 * 2 * 64 * 4  # layers, k and v, heads


def test_exact_mode_refuses_an_fp8_checkpoint(
    model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from twolane.engine.cuda.startup import load

    arch = replace(read_architecture(model_dir("llama")), stores_fp8=True)
    monkeypatch.setattr(load, "read_architecture", lambda _: arch)
    with pytest.raises(EngineConfigError, match="exact mode needs weights of another dtype"):
        cuda_engine(model_dir("llama"), exact=True)
