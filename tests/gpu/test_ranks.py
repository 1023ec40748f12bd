"""Ranks on cards of one machine: against one card, against themselves, and killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from tests.gpu.rows import PAGES_A_ROW, Row, answer_all, engine_of, params_of, prompt_of
from twolane.engine.config import EngineConfig
from twolane.engine.errors import RankLostError
from twolane.engine.load import load_engine
from twolane.engine.ranks.group import RankGroup
from twolane.engine.step import Page, RowWork, SampledToken
from twolane.engine.testing import FAMILIES, write_random_model
from twolane.params import SamplingParams

N_CARDS = torch.cuda.device_count()
COUNTS = [
    pytest.param(
        n,
        id=name,
        marks=pytest.mark.skipif(n > N_CARDS, reason=f"needs {n} GPUs; {N_CARDS} here"),
    )
    for n, name in ((2, "two_ranks"), (4, "four_ranks"))
]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(N_CARDS < 2, reason=f"needs 2 GPUs; {N_CARDS} here"),
]

GREEDY = SamplingParams(temperature=0.0, top_logprobs=8)
LENGTHS = (1, 2, 63, 64, 65, 129, 700)
ModelDir = Callable[[str], Path]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    """Two key-value heads: with four ranks, two share each."""
    root = tmp_path_factory.mktemp("models")

    def written(family: str) -> Path:
        if not (root / family).exists():
            write_random_model(root / family, family, seed=1, hidden_size=128)
        return root / family

    return written


@contextmanager
def group(model: Path, ranks: int, **options: Any) -> Iterator[RankGroup]:
    settings: dict[str, Any] = {"n_pages": 256, "exact": False, **options}
    made = load_engine(
        EngineConfig(model_dir=model, device="cuda", tensor_parallel=ranks, **settings)
    )
    assert isinstance(made, RankGroup)
    try:
        yield made
    finally:
        made.close()


def assert_same_answer(
    found: list[SampledToken],
    expected: list[SampledToken],
    *,
    within: float = 2e-4,
    tie: float = 1e-5,
) -> None:
    """Log-probabilities are near; a first difference of greedy tokens passes only at a tie."""
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        known = dict(ours.top)
        for token, logprob in theirs.top[:4]:
            assert known[token] == pytest.approx(logprob, abs=within), f"token {i}"
        if ours.token != theirs.token:
            assert theirs.top[0][1] - theirs.top[1][1] < tie, f"token {i} differs without a tie"
            return


@pytest.mark.parametrize("ranks", COUNTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_answer_what_one_card_answers(family: str, ranks: int, model_dir: ModelDir) -> None:
    """In float32; with prompts in chunks, decode in graphs, steps submitted ahead."""
    alone = engine_of(model_dir(family))
    rows = [[Row(i, prompt_of(n), GREEDY) for i, n in enumerate(LENGTHS)] for _ in range(2)]
    answer_all(alone, rows[0], 12, chunk=lambda: 100)
    alone.close()
    with group(model_dir(family), ranks) as several:
        answer_all(several, rows[1], 12, chunk=lambda: 100)
    for expected, found in zip(*rows, strict=True):
        assert_same_answer(found.found, expected.found)


@pytest.mark.parametrize("ranks", COUNTS)
def test_sums_in_one_shot_and_by_the_library_agree(ranks: int, model_dir: ModelDir) -> None:
    """200 rows are beyond one shot, those of the smaller steps within it; every way of sampling."""
    n, n_pages = 200, 200 * PAGES_A_ROW
    alone = engine_of(model_dir("llama"), n_pages=n_pages)
    kinds = [SamplingParams(temperature=0.0, top_logprobs=8), params_of(3)]

    def crowd(size: int) -> list[Row]:
        return [Row(i, prompt_of(20 + i % 40), kinds[i % 2]) for i in range(size)]

    expected = crowd(n)
    answer_all(alone, expected, 4, chunk=lambda: 1 << 20)
    alone.close()
    with group(model_dir("llama"), ranks, n_pages=n_pages) as several:
        for size in (n, 130, 9, 1):
            found = crowd(size)
            answer_all(several, found, 4, chunk=lambda: 1 << 20)
            for ours, theirs in list(zip(found, expected, strict=False))[::2]:  # the greedy ones
                assert_same_answer(ours.found, theirs.found)


@pytest.mark.parametrize("stored", [{}, {"kv_dtype": "fp8"}, {"weights": "fp8"}])
def test_steps_that_overlap_and_sum_in_one_shot_agree_with_the_librarys_sums(
    stored: dict[str, str], tmp_path: Path
) -> None:
    """In bfloat16, where few rows' products stream and every launch overlaps the one before."""
    model = write_random_model(
        tmp_path, "llama", seed=2, hidden_size=512, heads=8, kv_heads=2, head_dim=128,
        intermediate_size=1024, vocab_size=1000,
    )  # fmt: skip
    answers: list[list[list[Row]]] = []
    for peer_all_reduce in (True, False):
        options: dict[str, Any] = {"dtype": "bfloat16", "n_pages": 100 * PAGES_A_ROW, **stored}
        with group(model, 2, peer_all_reduce=peer_all_reduce, **options) as several:
            crowds = [[Row(i, prompt_of(30 + i), GREEDY) for i in range(n)] for n in (1, 7, 100)]
            for rows in crowds:
                answer_all(several, rows, 6, chunk=lambda: 1 << 20)
            answers.append(crowds)
    for ours, theirs in zip(*answers, strict=True):
        for found, expected in zip(ours, theirs, strict=True):
            assert_same_answer(found.found, expected.found, within=0.1, tie=0.1)


@pytest.mark.parametrize("ranks", COUNTS)
def test_exact_ranks_keep_a_rows_bits_whatever_its_company(ranks: int, tmp_path: Path) -> None:
    model = write_random_model(
        tmp_path, "llama", seed=2, hidden_size=512, heads=8, kv_heads=2, head_dim=128,
        vocab_size=1000,
    )  # fmt: skip
    with group(model, ranks, dtype="bfloat16", exact=True, n_pages=150 * PAGES_A_ROW) as several:
        crowd = [Row(i, prompt_of(30 + i), params_of(i)) for i in range(140)]
        answer_all(several, crowd, 6, chunk=lambda: 57)
        for i in (0, 1, 2, 3, 70, 139):
            alone = Row(i, prompt_of(30 + i), params_of(i))
            answer_all(several, [alone], 6, chunk=lambda: 1 << 20, ahead=False)
            assert alone.found == crowd[i].found, i


def test_a_bad_row_fails_alone_on_every_rank(model_dir: ModelDir) -> None:
    with group(model_dir("qwen3"), 2) as several:
        rows = [Row(i, prompt_of(40 + i), params_of(i)) for i in range(4)]
        answer_all(several, rows, 2, chunk=lambda: 1 << 20)
        work = [row.work(1) for row in rows]
        expected = several.run(work)
        stray = RowWork(99, [5, 999_999], 0, 2, [Page(255)], 1, GREEDY, True)
        far = RowWork(98, [5], 0, 1, [Page(2**40)], 1, GREEDY, True)
        results = several.run([stray, *work, far])
        assert [bool(result.error) for result in results] == [True] + [False] * 4 + [True]
        assert results[1:5] == expected


@pytest.mark.usefixtures("cards_alone")
def test_a_rank_killed_amid_steps_ends_all_and_frees_the_cards(model_dir: ModelDir) -> None:
    with group(model_dir("llama"), 2) as several:
        row = Row(0, prompt_of(40), GREEDY)
        answer_all(several, [row], 3, chunk=lambda: 1 << 20)
        free = torch.cuda.mem_get_info(0)[0]
        os.kill(several.pids[1], signal.SIGSTOP)  # rank 0 now waits for it on the card
        step = several.submit([row.work(1)])
        time.sleep(0.5)
        began = time.monotonic()
        os.kill(several.pids[1], signal.SIGKILL)
        with pytest.raises(RankLostError, match="rank 1 was killed by SIGKILL"):
            step.result()
        assert time.monotonic() - began < 5
    assert torch.cuda.mem_get_info(0)[0] > free, "a killed rank's memory was not given back"
    with group(model_dir("llama"), 2) as again:
        other = Row(0, prompt_of(40), GREEDY)
        answer_all(again, [other], 3, chunk=lambda: 1 << 20)
        assert [t.token for t in other.found] == [t.token for t in row.found]
