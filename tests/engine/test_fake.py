"""The fake engine: predictable answers, and no wrong page goes unseen."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import numpy as np
import pytest

from twolane.engine.fake import FakeEngine, FakeEngineConfig, expected_answer
from twolane.engine.step import Engine, Page, RowResult, RowWork
from twolane.params import SamplingParams

CONFIG = FakeEngineConfig(n_pages=32, vocab_size=100, first_token=3, eos_token_ids=(2,))
SEEDED = SamplingParams(seed=9, top_logprobs=2)


def step(
    engine: FakeEngine, tokens: list[int], start: int, n_new: int, pages: list[Page], n_prompt: int
) -> RowResult:
    last = start + n_new == len(tokens)
    return engine.run([RowWork(4, tokens, start, n_new, pages, n_prompt, SEEDED, last)])[0]


def answer_of(engine: FakeEngine, prompt: list[int], n: int, chunks: random.Random) -> list[int]:
    pages = [Page(i) for i in chunks.sample(range(32), 10)]
    tokens, start, found = list(prompt), 0, list[int]()
    while len(found) < n:
        n_new = chunks.randint(1, len(tokens) - start)
        result = step(engine, tokens, start, n_new, pages, len(prompt))
        assert not result.error, result.error
        start += n_new
        found += [token.token for token in result.tokens]
        tokens += [token.token for token in result.tokens]
    return found


@pytest.mark.parametrize("eos_every", [0, 20])
def test_the_expected_answer_is_what_it_answers_in_any_chunks(eos_every: int) -> None:
    config = replace(CONFIG, eos_every_tokens=eos_every)
    prompt = [(7 * i) % 90 + 3 for i in range(50)]
    whole = expected_answer(prompt, replace(SEEDED, ignore_eos=True), 60, config=config)
    for seed in range(4):
        assert answer_of(FakeEngine(config), prompt, 60, random.Random(seed)) == whole
    cut = expected_answer(prompt, SEEDED, 60, config=config)
    assert whole[: len(cut)] == cut
    assert (2 in cut) == bool(eos_every)
    assert cut[-1] == 2 or len(cut) == 60
    assert len(set(whole)) > 20


def test_prompt_seed_and_sample_change_the_answer() -> None:
    answers = {
        tuple(expected_answer(prompt, SamplingParams(seed=seed), 8, sample_index=sample))
        for prompt, seed, sample in [([1, 2], 0, 0), ([2, 1], 0, 0), ([1, 2], 1, 0), ([1, 2], 0, 1)]
    }
    assert len(answers) == 4


def test_other_parameters_do_not() -> None:
    hot = SamplingParams(seed=1, temperature=2.0, top_k=3)
    assert expected_answer([1], hot, 5) == expected_answer([1], SamplingParams(seed=1), 5)


@pytest.mark.parametrize("at", [0, 15, 16, 33, 38])
@pytest.mark.parametrize("word", [0, 1])
def test_one_wrong_bit_is_seen_and_its_position_named(at: int, word: int) -> None:
    engine = FakeEngine(CONFIG)
    tokens, pages = [(3 * i) % 97 for i in range(40)], [Page(9), Page(4), Page(20)]
    assert step(engine, tokens, 0, 39, pages, 40).error == ""
    engine.pool[pages[at // 16], (word * 16 + at % 16) * 8 + 3] ^= 1
    error = step(engine, tokens, 39, 1, pages, 40).error
    assert error == f"position {at} of 39 (page {pages[at // 16]}) holds something else"


def test_unsent_stale_and_swapped_pages_are_seen() -> None:
    engine = FakeEngine(CONFIG)
    tokens = [(3 * i) % 97 for i in range(48)]
    other = [(5 * i) % 97 for i in range(48)]
    pages, stale = [Page(i) for i in (1, 2, 3)], [Page(i) for i in (5, 6, 7)]
    assert step(engine, tokens, 0, 48, pages, 48).tokens
    assert step(engine, other, 0, 48, stale, 48).tokens

    def error(held: list[Page]) -> str:
        return step(engine, tokens, 47, 1, held, 48).error

    assert error(pages) == ""
    assert error([Page(1), Page(30), Page(3)]) == "position 16 of 47 (page 30) was never written"
    assert error([Page(1), Page(6), Page(3)]) == "position 16 of 47 (page 6) holds something else"
    assert error([Page(2), Page(1), Page(3)]) == "position 0 of 47 (page 2) holds something else"


def test_a_page_that_was_copied_whole_is_as_good() -> None:
    source, target = FakeEngine(CONFIG), FakeEngine(CONFIG)
    tokens = [(3 * i) % 97 for i in range(40)]
    step(source, tokens, 0, 40, [Page(1), Page(2), Page(3)], 40)
    moved = [Page(9), Page(8), Page(7)]
    target.pool[moved] = source.pool[1:4]
    assert step(target, [*tokens, 5], 40, 1, moved, 40).error == ""


@pytest.mark.parametrize(
    ("tokens", "pages", "complaint"),
    [
        ([1, 100], [Page(0)], "token 100 at position 1 is out of range"),
        ([1] * 17, [Page(0)], "17 positions do not fit 1 pages"),
        ([1] * 5000, [Page(0)] * 400, "5000 positions do not fit"),
    ],
)
def test_a_bad_row_fails_alone(tokens: list[int], pages: list[Page], complaint: str) -> None:
    engine = FakeEngine(CONFIG)
    bad = RowWork(1, tokens, 0, len(tokens), pages, 1, SEEDED, True)
    fine = RowWork(2, [1, 2], 0, 2, [Page(3)], 2, SEEDED, True)
    results = engine.run([bad, fine])
    assert complaint in results[0].error
    assert results[1].tokens[0].token == expected_answer([1, 2], SEEDED, 1, config=CONFIG)[0]


def test_it_is_an_engine_on_any_memory_and_takes_arrays() -> None:
    memory = bytearray(32 * 256)
    engine = FakeEngine(CONFIG, memory=memoryview(memory))
    assert isinstance(engine, Engine)
    tokens = array("i", [1, 2, 3])
    (result,) = engine.run([RowWork(1, tokens, 0, 3, [Page(31)], 3, SEEDED, True)])
    assert any(memory[31 * 256 :])
    assert not any(memory[: 31 * 256])
    (token,) = result.tokens
    assert len(token.top) == 2
    assert token.top[0] == (token.token, token.logprob)
    engine.close()


def test_a_longer_step_costs_more_time() -> None:
    engine = FakeEngine(CONFIG)
    row = RowWork(1, [1] * 100, 0, 100, [Page(0)] * 7, 100, SEEDED, True)
    one = RowWork(1, [1] * 100, 99, 1, [Page(0)] * 7, 100, SEEDED, True)
    assert 0 < engine.step_time_s([]) < engine.step_time_s([one]) < engine.step_time_s([row])
    assert engine.step_time_s([one, row]) > engine.step_time_s([row])


def test_marks_do_not_depend_on_the_platform() -> None:
    """Two sides of a cluster compare each other's marks: their values are part of the contract."""
    engine = FakeEngine(CONFIG)
    step(engine, [1, 2, 3], 0, 3, [Page(0)], 3)
    marks = engine.pool[0].view(np.uint64).reshape(2, -1)[:, :3].T.reshape(-1).tolist()
    assert marks[0] == 0x910A2DEC89025CC1, "splitmix64's first output for the seed 1"
    assert marks[4] == 0xEDBE5CA3654F5804
    assert len(set(marks)) == 6
