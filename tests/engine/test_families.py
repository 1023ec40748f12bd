"""Every family against transformers in float32, at lengths around the edges of pages and tiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.step import SampledToken
from twolane.engine.testing import FAMILIES, write_random_model
from twolane.params import SamplingParams

LENGTHS = (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 200, 257, 512, 700)
GREEDY = SamplingParams(temperature=0.0, top_logprobs=8)
Answer = Callable[..., list[SampledToken]]

# Shapes that the four defaults do not have, and the older spellings of config.json.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "seven query heads to one": ("qwen2", {"heads": 14, "kv_heads": 2, "hidden_size": 14 * 16}),
    "one query head to one": (
        "mistral",
        {"heads": 3, "kv_heads": 3, "hidden_size": 48, "sliding_window": None},
    ),
    "all query heads to one": (
        "llama",
        {"heads": 6, "kv_heads": 1, "hidden_size": 96, "tie_word_embeddings": True},
    ),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "heads wider than hidden": ("qwen3", {"head_dim": 80, "attention_bias": True}),
    "layer types": (
        "qwen3",
        {
            "layers": 3,
            "use_sliding_window": True,
            "sliding_window": 70,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


def prompt_of(length: int) -> list[int]:
    source = torch.Generator().manual_seed(length)
    return torch.randint(3, 259, (length,), generator=source).tolist()


def oracle(model_dir: Path) -> Callable[[list[int]], torch.Tensor]:
    """tokens -> float32 log-probabilities `[len(tokens), vocab]` of transformers."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    def logprobs(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
        return found

    return logprobs


def assert_same_answer(
    found: list[SampledToken], prompt: list[int], expected: torch.Tensor
) -> None:
    """`expected` are the oracle's log-probabilities after prompt and answer. A first difference of
    greedy tokens passes only where the oracle itself is within 1e-5 of a tie."""
    for i, token in enumerate(found):
        row = expected[len(prompt) - 1 + i]
        for other, logprob in token.top:
            assert logprob == pytest.approx(float(row[other]), abs=1e-4), f"token {i}"
        if token.token != int(row.argmax()):
            best = row.topk(2).values
            assert float(best[0] - best[1]) < 1e-5, f"token {i} differs without a tie"
            return


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_transformers(
    family: str, exact: bool, model_dir: Callable[[str], Path], answer: Answer
) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir(family), exact=exact, n_pages=48))
    logprobs = oracle(model_dir(family))
    for length in LENGTHS:
        prompt = prompt_of(length)
        chunk_tokens = 1 << 30 if exact else max(1, length // 3)
        found = answer(engine, prompt, GREEDY, 4, chunk_tokens=chunk_tokens)
        tokens = prompt + [token.token for token in found]
        assert_same_answer(found, prompt, logprobs(tokens))


@pytest.mark.parametrize("name", VARIANTS)
def test_other_shapes_are_those_of_transformers(name: str, tmp_path: Path, answer: Answer) -> None:
    family, options = VARIANTS[name]
    write_random_model(tmp_path, family, seed=3, **options)
    engine = load_engine(EngineConfig(model_dir=tmp_path, n_pages=64))
    logprobs = oracle(tmp_path)
    for length in (1, 16, 65, 300):
        prompt = prompt_of(length)
        found = answer(engine, prompt, GREEDY, 3, chunk_tokens=130)
        assert_same_answer(found, prompt, logprobs(prompt + [t.token for t in found]))


@pytest.mark.parametrize("page_tokens", [16, 48, 64, 128])
def test_page_size_changes_no_bit_of_an_exact_answer(
    page_tokens: int, model_dir: Callable[[str], Path], answer: Answer
) -> None:
    prompt = prompt_of(300)
    found = []
    for size in (page_tokens, 32):
        config = EngineConfig(model_dir=model_dir("mistral"), page_tokens=size, n_pages=24)
        found.append(answer(load_engine(config), prompt, GREEDY, 3, chunk_tokens=77))
    assert found[0] == found[1]


def test_a_long_answer_is_greedy_like_that_of_transformers(
    model_dir: Callable[[str], Path], answer: Answer
) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("qwen3"), n_pages=24))
    prompt = prompt_of(40)
    found = answer(engine, prompt, GREEDY, 150)
    tokens = prompt + [token.token for token in found]
    assert len(set(tokens[40:])) > 30, "the answer says little: it repeats itself"
    assert_same_answer(found, prompt, oracle(model_dir("qwen3"))(tokens))


def test_bfloat16_stays_near_float32(model_dir: Callable[[str], Path], answer: Answer) -> None:
    prompt = prompt_of(200)
    config = EngineConfig(model_dir=model_dir("llama"), dtype="bfloat16", n_pages=24)
    (token,) = answer(load_engine(config), prompt, GREEDY, 1)
    row = oracle(model_dir("llama"))(prompt)[-1]
    for other, logprob in token.top:
        assert logprob == pytest.approx(float(row[other]), abs=0.15)
