"""Greedy answers of real clusters are those of transformers' generate, for every family."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.cluster.real_cluster import settled
from twolane import AsyncClient, Completion
from twolane.deploy.bundled import model_path
from twolane.engine.testing import FAMILIES, write_random_model
from twolane.testing import start_local

LENGTHS = (1, 2, 15, 16, 17, 40, 64, 127, 128, 129, 256, 333, 450, 601, 699, 700)
AT_ONCE = 16
TIE_GAP = 1e-5  # below this, transformers' own first and second choice are as good as equal
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": {"heads": 7, "kv_heads": 1, "hidden_size": 112}
}  # 7 query heads to one
MODELS = (*FAMILIES, "bundled")
TOPOLOGIES = {"1P1D": (1, 1), "2P2D": (2, 2)}
MOST_TIES = 1  # of all answers, 1,120 where all are asked for


@dataclass(frozen=True)
class Size:
    """How many prompts of each length, and how many tokens are asked for."""

    prompts: int
    tokens: int


SHORT = Size(prompts=1, tokens=20)  # each answer goes over from a page to the next
FULL = Size(prompts=7, tokens=64)
# Families differ within a worker, topologies between workers: each is there once. All pairs are
# for `make soak`.
CASES = [
    *(pytest.param(name, "1P1D", SHORT, id=f"{name}-1P1D") for name in FAMILIES),
    pytest.param("bundled", "2P2D", SHORT, id="bundled-2P2D"),  # the largest of the models
    *(
        pytest.param(name, workers, FULL, id=f"{name}-{workers}-full", marks=pytest.mark.soak)
        for name in MODELS
        for workers in TOPOLOGIES
    ),
]


@dataclass(frozen=True)
class Reference:
    """What transformers answered: tokens, their log-probabilities, and top-2 logit gaps."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    gaps: list[float]


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    random_models = {
        family: write_random_model(root / family, family, seed=7, **SHAPES.get(family, {}))
        for family in FAMILIES
    }
    return {**random_models, "bundled": model_path()}


@pytest.fixture(scope="session")
def ties() -> Counter[str]:
    """Answers of all tests here that differ from transformers', by model."""
    return Counter()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """On a busy machine two threads of a small model mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def references(model_dir: Path, size: Size) -> tuple[Reference, ...]:
    """Prompts of 16 lengths, some of each, through `generate` in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    source = torch.Generator().manual_seed(11)
    found: list[Reference] = []
    for length in LENGTHS:
        shape = (size.prompts, length)
        prompts = torch.randint(3, model.config.vocab_size, shape, generator=source)
        found += generate(model, prompts, size.tokens)
    return tuple(found)


def generate(
    model: transformers.PreTrainedModel, prompts: torch.Tensor, n_tokens: int
) -> list[Reference]:
    """What transformers answers to `[n, length]` prompts."""
    with torch.inference_mode():
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_new_tokens=n_tokens,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    logits = torch.stack(out.logits, dim=1).float()  # [n, n_tokens, vocab]
    tokens = out.sequences[:, prompts.shape[1] :]
    best = logits.topk(2).values
    logprobs = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    columns = (prompts, tokens, logprobs, best[..., 0] - best[..., 1])
    return [Reference(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "workers", "size"), CASES)
async def test_greedy_answers_are_those_of_transformers(
    name: str, workers: str, size: Size, model_dirs: dict[str, Path], ties: Counter[str]
) -> None:
    expected = references(model_dirs[name], size)
    prefill, decode = TOPOLOGIES[workers]
    with start_local(model_dirs[name], prefill=prefill, decode=decode, pages=2048) as cluster:
        async with cluster.aclient() as client:
            answers = await ask_all(client, [e.prompt for e in expected], size.tokens)
        await settled(cluster, prefill + decode)
    ties.update(name for answer, e in zip(answers, expected, strict=True) if is_tie(answer, e))
    assert ties.total() <= MOST_TIES, ties


async def ask_all(client: AsyncClient, prompts: list[list[int]], n_tokens: int) -> list[Completion]:
    """16 at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(prompt: list[int]) -> Completion:
        async with room:
            return await client.generate(
                token_ids=prompt,
                temperature=0.0,
                max_tokens=n_tokens,
                ignore_eos=True,
                top_logprobs=0,
            )

    return await asyncio.gather(*(ask(prompt) for prompt in prompts))


def is_tie(answer: Completion, expected: Reference) -> bool:
    """False: equal throughout. True: differs first where transformers itself was of two minds.

    Any other difference is an AssertionError.
    """
    assert len(answer.tokens) == len(expected.tokens)
    for i, token in enumerate(answer.tokens):
        if token.token_id != expected.tokens[i]:
            where = f"{len(expected.prompt)} tokens in, {i} out"
            assert expected.gaps[i] < TIE_GAP, f"{where}: gap {expected.gaps[i]}"
            return True
        assert token.logprob == pytest.approx(expected.logprobs[i], abs=1e-4)
    return False
