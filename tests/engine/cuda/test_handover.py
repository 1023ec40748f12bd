"""A row that one engine prefilled into wide pages goes on in another's FP8 pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.engine.cuda.test_fp8 import GREEDY, PROMPT, cuda_engine, rounded
from twolane.deploy.process.page_converters import page_converters_of
from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.cpu.pool import KVPool
from twolane.engine.step import Engine, Page, RowWork, SampledToken
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.layouts.sources import PageMaker
from twolane.layout import parse_layout


def run(engine: Engine, tokens: list[int], start: int, pages: list[Page]) -> SampledToken:
    n_new = len(tokens) - start
    work = RowWork(1, tokens, start, n_new, pages, len(PROMPT), GREEDY, sample=True)
    (result,) = engine.run([work])
    assert not result.error
    return result.tokens[0]


def go_on(engine: Engine, first: SampledToken, pages: list[Page], n: int) -> list[SampledToken]:
    tokens = [*PROMPT, first.token]
    found: list[SampledToken] = []
    for _ in range(n):
        found.append(run(engine, tokens, len(tokens) - 1, pages))
        tokens.append(found[-1].token)
    return found


def handed_over(source: Engine, pages: list[Page], target: Engine) -> list[Page]:
    """What a transfer does, without the wire: the prompt's pages, made to the target's layout."""
    ours, theirs = parse_layout(source.spec.layout), parse_layout(target.spec.layout)
    maker = PageMaker(source.pool, source.spec.layout, page_converters_of(source.spec.layout))
    paging = Paging(ours.page_tokens, theirs.page_tokens, theirs.page_bytes)
    n = paging.n_pages(len(PROMPT))
    made = maker.source_for(target.spec.layout)
    taken = [Page(target.spec.n_pages - 1 - i) for i in range(n)]
    pool: Any = target
    there = pool._memory.tensor.view(torch.uint8).view(-1, theirs.page_bytes)
    for i, page in enumerate(taken):
        memory, ids = made.take(paging.sources(pages, i, i + 1, len(PROMPT)))
        there[page] = torch.from_numpy(memory[ids[0]])
    return taken


def test_answer_goes_on_over_fp8_pages_made_of_wide_ones(
    model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the CPU engine with its pages rounded, once the prompt is in them, and from there."""
    cpu = load_engine(EngineConfig(model_dir=model_dir("llama"), n_pages=12, exact=False))
    fp8 = cuda_engine(model_dir("llama"), kv_dtype="fp8")
    assert cpu.spec.fingerprint == fp8.spec.fingerprint, "or no router would pair them"
    pages = [Page(i) for i in (9, 2, 5, 7, 0, 11)]
    first = run(cpu, PROMPT, 0, pages)
    taken = handed_over(cpu, pages[:5], fp8)
    found = go_on(fp8, first, taken, 3)

    head_dim = parse_layout(cpu.spec.layout).head_dim
    held = torch.from_numpy(cpu.pool.reshape(-1)).view(torch.float32).view(-1, head_dim)
    held.copy_(rounded(held))
    write = KVPool.write
    monkeypatch.setattr(
        KVPool,
        "write",
        lambda self, layer, at, k, v: write(self, layer, at, rounded(k), rounded(v)),
    )
    expected = go_on(cpu, first, pages, 3)
    assert [token.token for token in found] == [token.token for token in expected]
    errors = [
        logprob - dict(theirs.top)[other]
        for ours, theirs in zip(found, expected, strict=True)
        for other, logprob in ours.top
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 4e-3
