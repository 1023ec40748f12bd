"""The whole engine on a card: against transformers, against itself, and with broken rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from engine.config import EngineConfig
from engine.cuda.engine import CudaEngine
from engine.cuda.memory import tensor_of
from engine.kernels.page_copy import copy_pages
from engine.step import Page, RowWork, SampledToken, Step
from engine.testing import FAMILIES, write_random_model
from twolane.params import SamplingParams

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, top_logprobs=8)
LENGTHS = (1, 2, 63, 64, 65, 127, 129, 300, 700)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("models")

    def written(family: str) -> Path:
        if not (root / family).exists():
            write_random_model(root / family, family, seed=1, hidden_size=128)
        return root / family

    return written


def engine_of(model: Path, **options: Any) -> CudaEngine:
    from engine.cuda.load import load_cuda_engine

    settings: dict[str, Any] = {"n_pages": 256, "exact": False, **options}
    return load_cuda_engine(EngineConfig(model_dir=model, **settings))


class Row:
    """One row with a run of pages of its own, and how far it is."""

    def __init__(self, name: int, prompt: Sequence[int], params: SamplingParams) -> None:
        self.name, self.prompt, self.params = name, list(prompt), params
        self.pages = [Page(name * 16 + i) for i in range(16)]
        self.tokens = list(prompt)
        self.found: list[SampledToken] = []
        self.done = 0  # computed, or on their way
        self.pending = False

    def work(self, chunk_tokens: int) -> RowWork:
        n_tokens = len(self.tokens) + self.pending
        n_new = min(chunk_tokens, n_tokens - self.done)
        return RowWork(
            self.name, self.tokens, self.done, n_new, self.pages, len(self.prompt), self.params,
            self.done + n_new == n_tokens, follows=self.pending,
        )  # fmt: skip


def answer_all(
    engine: CudaEngine, rows: list[Row], n: int, *, chunk: Callable[[], int], ahead: bool = True
) -> None:
    """Run the rows together, a step ahead of what is known, until each has n tokens."""
    before: tuple[Step, list[RowWork]] | None = None
    by_name = {row.name: row for row in rows}
    while True:
        work = [row.work(chunk()) for row in rows if len(row.found) + row.pending < n]
        step = engine.submit(work) if work else None
        for share in work:
            row = by_name[share.row]
            row.done += share.n_new
        if before is not None:
            _take(before, by_name)
        for share in work:
            by_name[share.row].pending = share.sample
        before = (step, work) if step is not None else None
        if before is not None and not ahead:
            _take(before, by_name)
            before = None
        if before is None and all(len(row.found) == n for row in rows):
            return


def _take(step: tuple[Step, list[RowWork]], by_name: dict[int, Row]) -> None:
    for result in step[0].result():
        assert not result.error, result.error
        row = by_name[result.row]
        row.found += result.tokens
        row.tokens += [token.token for token in result.tokens]
        row.pending = False


def prompt_of(length: int) -> list[int]:
    source = random.Random(length)
    return [source.randrange(3, 259) for _ in range(length)]


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_transformers(family: str, model_dir: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir(family), dtype=torch.float32)
    model = model.eval().cuda()
    engine = engine_of(model_dir(family))
    rows = [Row(i, prompt_of(length), GREEDY) for i, length in enumerate(LENGTHS)]
    answer_all(engine, rows, 6, chunk=lambda: 100)
    for row in rows:
        with torch.inference_mode():
            ids = torch.tensor([row.tokens], device="cuda")
            expected = model(ids).logits[0].float().log_softmax(-1)
        for i, token in enumerate(row.found):
            at = expected[len(row.prompt) - 1 + i]
            for other, logprob in token.top:
                assert logprob == pytest.approx(float(at[other]), abs=2e-4), f"{row.name}: {i}"
            if token.token != int(at.argmax()):
                best = at.topk(2).values
                assert float(best[0] - best[1]) < 1e-5, f"token {i} differs without a tie"
                break
    engine.close()


def params_of(i: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.0, "repetition_penalty": 1.2, "min_p": 0.01},
    ]
    return SamplingParams(seed=i, top_logprobs=3, **kinds[i % len(kinds)])


def crowd() -> list[Row]:
    source = random.Random(3)
    lengths = [1, 2, 63, 64, 65, 100, 128, 129, 300, 500] + [source.randrange(1, 400) for _ in "12"]
    return [Row(i, prompt_of(n), params_of(i)) for i, n in enumerate(lengths)]


@pytest.fixture(scope="module")
def exact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 128, as the largest models have them, and many to a group."""
    return write_random_model(
        tmp_path_factory.mktemp("exact"), "llama", seed=2, hidden_size=512, heads=8, kv_heads=2,
        head_dim=128, vocab_size=1000,
    )  # fmt: skip


def test_exact_mode_gives_a_row_the_same_bits_alone_in_a_crowd_and_resumed(
    exact_dir: Path,
) -> None:
    engine = engine_of(exact_dir, dtype="bfloat16", exact=True)
    alone = crowd()
    for row in alone:
        answer_all(engine, [row], 8, chunk=lambda: 1 << 20, ahead=False)
    source = random.Random(7)
    together = crowd()
    source.shuffle(together)
    answer_all(engine, together, 8, chunk=lambda: source.randrange(1, 200))
    for row in sorted(together, key=lambda row: row.name):
        assert row.found == alone[row.name].found, row.name
    for row in alone:
        known = source.randrange(1, 8)
        tokens = row.tokens[: len(row.prompt) + known]
        work = RowWork(row.name, tokens, 0, len(tokens), row.pages, len(row.prompt), row.params,
                       True)  # fmt: skip
        (result,) = engine.run([work])
        assert result.tokens == (row.found[known],), row.name
    engine.close()


def test_pages_handed_to_another_instance_continue_with_the_same_bits(exact_dir: Path) -> None:
    prefill = engine_of(exact_dir, dtype="bfloat16", exact=True)
    decode = engine_of(exact_dir, dtype="bfloat16", exact=True)
    whole = Row(0, prompt_of(150), params_of(1))
    answer_all(prefill, [whole], 5, chunk=lambda: 64)
    row = Row(1, prompt_of(150), params_of(1))
    answer_all(prefill, [row], 1, chunk=lambda: 150)
    assert prefill.device_pool is not None
    assert decode.device_pool is not None
    tensor_of(decode.device_pool).fill_(0xFF)  # NaN wherever nothing is sent
    source = torch.tensor(row.pages[:3], dtype=torch.int32, device="cuda")
    row.pages = [Page(200 - i) for i in range(16)]
    target = torch.tensor(row.pages[:3], dtype=torch.int32, device="cuda")
    copy_pages(
        prefill.device_pool.address, decode.device_pool.address, source, target,
        page_bytes=decode.spec.page_bytes,
    )  # fmt: skip
    torch.cuda.synchronize()
    answer_all(decode, [row], 5, chunk=lambda: 1)
    assert row.found == whole.found
    prefill.close()
    decode.close()


def test_a_broken_row_fails_alone_and_changes_no_other(model_dir: Callable[[str], Path]) -> None:
    engine = engine_of(model_dir("qwen3"))
    rows = [Row(i, prompt_of(40 + i), params_of(i)) for i in range(6)]
    answer_all(engine, rows, 2, chunk=lambda: 1 << 20)
    work = [row.work(1) for row in rows]
    expected = engine.run(work)
    assert engine.device_pool is not None
    pool = tensor_of(engine.device_pool).view(torch.float32).view(engine.spec.n_pages, -1)
    pool[rows[2].pages[0]] = torch.nan
    pool[rows[4].pages[0]] = torch.inf
    torch.cuda.synchronize()
    stray = RowWork(99, [5, 999_999], 0, 2, [Page(255)], 1, GREEDY, True)
    results = engine.run([*work, stray])
    broken = [bool(result.error) for result in results]
    assert broken == [False, False, True, False, True, False, True]
    assert [r for r in results if not r.error] == [expected[i] for i in (0, 1, 3, 5)]
    engine.close()


def test_steps_ahead_and_one_by_one_agree_in_every_bucket(
    model_dir: Callable[[str], Path],
) -> None:
    engine = engine_of(model_dir("llama"))
    for n in (1, 2, 3, 9, 16):
        ahead = [Row(i, prompt_of(20 + i), params_of(0)) for i in range(n)]
        answer_all(engine, ahead, 5, chunk=lambda: 1 << 20)
        waiting = [Row(i, prompt_of(20 + i), params_of(0)) for i in range(n)]
        answer_all(engine, waiting, 5, chunk=lambda: 1 << 20, ahead=False)
        assert [row.found for row in ahead] == [row.found for row in waiting], n
    engine.close()
