"""Ranks compute what one engine computes: as threads here, as processes in test_processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.ranks.messages import StepReader, StepWriter
from twolane.engine.ranks.testing import thread_ranks, with_ranks
from twolane.engine.step import Page, RowResult, RowWork, SampledToken
from twolane.engine.testing import FAMILIES, write_random_model
from twolane.params import SamplingParams

Answer = Callable[..., list[SampledToken]]
ModelDir = Callable[[str], Path]
PROMPT = [(37 * i) % 250 + 3 for i in range(150)]
GREEDY = SamplingParams(temperature=0.0, top_logprobs=8)
PENALISED = SamplingParams(
    temperature=0.9, seed=4, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.2, min_tokens=3,
    logit_bias={9: 2.0}, top_logprobs=2,
)  # fmt: skip


def assert_same_answer(found: list[SampledToken], expected: list[SampledToken]) -> None:
    """Log-probabilities are near; a first difference of greedy tokens passes only at a tie."""
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        known = dict(ours.top)
        for token, logprob in theirs.top[:4]:
            assert known[token] == pytest.approx(logprob, abs=1e-4), f"token {i}"
        if ours.token != theirs.token:
            assert theirs.top[0][1] - theirs.top[1][1] < 1e-5, f"token {i} differs without a tie"
            return


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_answer_what_one_engine_answers(
    family: str, ranks: int, model_dir: ModelDir, answer: Answer
) -> None:
    config = EngineConfig(model_dir=model_dir(family), n_pages=16, exact=False)
    expected = answer(load_engine(config), PROMPT, GREEDY, 12)
    found = with_ranks(
        ranks,
        lambda end: answer(load_engine(config, ranks=end), PROMPT, GREEDY, 12, chunk_tokens=70),
    )
    assert all(each == found[0] for each in found), "ranks disagree"
    assert_same_answer(found[0], expected)


@pytest.mark.parametrize("heads", [(8, 1), (8, 8), (4, 4)])
def test_key_value_heads_are_split_or_shared(
    heads: tuple[int, int], tmp_path: Path, answer: Answer
) -> None:
    shape = {"heads": heads[0], "kv_heads": heads[1], "vocab_size": 323, "attention_bias": True}
    write_random_model(tmp_path, "qwen3", seed=2, **shape)  # type: ignore[arg-type]
    config = EngineConfig(model_dir=tmp_path, n_pages=16)
    expected = answer(load_engine(config), PROMPT, GREEDY, 6)
    found = with_ranks(4, lambda end: answer(load_engine(config, ranks=end), PROMPT, GREEDY, 6))
    assert_same_answer(found[0], expected)


def test_exact_ranks_keep_a_rows_bits_whatever_its_company(
    model_dir: ModelDir, answer: Answer
) -> None:
    config = EngineConfig(model_dir=model_dir("llama"), n_pages=40, dtype="bfloat16")

    def run(end: object) -> tuple[list[SampledToken], list[SampledToken], list[RowResult]]:
        engine = load_engine(config, ranks=end)  # type: ignore[arg-type]
        whole = answer(engine, PROMPT, PENALISED, 6)
        cut = answer(engine, PROMPT, PENALISED, 6, chunk_tokens=31)
        rows = [
            RowWork(i, PROMPT, 0, 150, [Page(10 * i + k) for k in range(10)], 150, PENALISED, True)
            for i in range(4)
        ]
        return whole, cut, engine.run(rows)

    for whole, cut, crowd in with_ranks(4, run):
        assert whole == cut
        assert [result.tokens[0] for result in crowd] == [whole[0]] * 4


def test_steps_that_travelled_give_the_same_and_bad_rows_fail_alone(model_dir: ModelDir) -> None:
    config = EngineConfig(model_dir=model_dir("qwen2"), n_pages=16)
    fine = RowWork(7, PROMPT[:40], 0, 40, [Page(i) for i in range(3)], 40, PENALISED, True)
    bad = [
        replace(fine, row=1, token_ids=[5] * 39 + [320], pages=[Page(i) for i in range(4, 7)]),
        replace(fine, row=2, pages=[Page(9)]),
        replace(fine, row=3, pages=[Page(9), Page(2**40), Page(10)]),
        replace(fine, row=4, params=SamplingParams(logit_bias={999: 1.0})),
    ]
    work = [bad[0], fine, *bad[1:]]
    _, arrived = StepReader().decode(StepWriter().encode(1, work))
    expected = load_engine(config).run(work)
    assert [bool(result.error) for result in expected] == [True, False, True, True, True]
    ends = thread_ranks(2)
    for results in with_ranks(ends, lambda end: load_engine(config, ranks=end).run(arrived)):
        assert [(r.row, r.error) for r in results] == [(r.row, r.error) for r in expected]
        assert results[1].tokens[0].token == expected[1].tokens[0].token
    assert ends[0].n_calls == ends[1].n_calls


def test_a_rank_says_how_its_pages_are_laid_out(model_dir: ModelDir) -> None:
    config = EngineConfig(model_dir=model_dir("llama"), n_pages=8)
    alone = load_engine(config).spec
    two, four = (with_ranks(n, lambda end: load_engine(config, ranks=end).spec) for n in (2, 4))
    assert two[0] == two[1]
    assert two[0].layout == alone.layout.replace('kv_heads":2', 'kv_heads":1')[:-1] + ',"ranks":2}'
    shared = two[0].layout.replace('ranks":2', 'ranks":4')[:-1] + ',"whole_kv_heads":2}'
    assert four[0].layout == shared, "two ranks have the same head"
    assert four[0].page_bytes == two[0].page_bytes == alone.page_bytes // 2
    assert len({alone.fingerprint, two[0].fingerprint, four[0].fingerprint}) == 3
    free = replace(config, exact=False)
    (cut, _) = with_ranks(2, lambda end: load_engine(free, ranks=end).spec)
    assert cut.fingerprint == load_engine(free).spec.fingerprint
