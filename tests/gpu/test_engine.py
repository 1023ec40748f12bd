"""The whole engine on a card: against transformers, against itself, and with broken rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from tests.gpu.rows import Row, answer_all, engine_of, params_of, prompt_of
from twolane.engine.cuda.memory import tensor_of
from twolane.engine.cuda.plans import PROMPT_BUCKETS
from twolane.engine.step import Page, RowWork
from twolane.engine.testing import FAMILIES, write_random_model
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


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_transformers(family: str, model_dir: Callable[[str], Path]) -> None:
    assert_like_transformers(model_dir(family), LENGTHS)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(14, 2, 64), (4, 4, 80), (6, 2, 96), (7, 1, 128), (2, 1, 256)],
)
def test_answers_of_every_kind_of_head_shape_are_those_of_transformers(
    heads: int, kv_heads: int, head_dim: int, tmp_path: Path
) -> None:
    """Odd groups, none, and one for all; dimensions that are padded and that are not. More shapes
    are in the kernels' own tests."""
    write_random_model(
        tmp_path, "qwen3", seed=3, hidden_size=128, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim,
    )  # fmt: skip
    assert_like_transformers(tmp_path, (1, 64, 65, 130))


def assert_like_transformers(directory: Path, lengths: Sequence[int]) -> None:
    """Greedy answers in float32, and the log-probabilities of the likeliest tokens."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model = model.eval().cuda()
    engine = engine_of(directory)
    rows = [Row(i, prompt_of(length), GREEDY) for i, length in enumerate(lengths)]
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


@pytest.mark.parametrize(
    ("family", "options", "bound"),
    [
        ("llama", {}, 1e-4),
        ("mistral", {}, 1e-4),  # attention through a window
        ("llama", {"weights": "fp8", "dtype": "bfloat16"}, 0.1),
    ],
)
@pytest.mark.parametrize("lengths", [(600,), (1000,), (640, 640), (1000, 20, 300, 600)])
def test_prompts_as_graphs_answer_as_launch_by_launch(
    family: str,
    options: dict[str, Any],
    bound: float,
    lengths: Sequence[int],
    model_dir: Callable[[str], Path],
) -> None:
    engine = engine_of(model_dir(family), **options)
    found = []
    for most in (PROMPT_BUCKETS[-1], 0):
        engine.graphed_tokens = most
        rows = [Row(i, prompt_of(length), GREEDY) for i, length in enumerate(lengths)]
        n_graphs = len(engine._graphs._captured)
        answer_all(engine, rows, 1, chunk=lambda: 1 << 20)
        assert (len(engine._graphs._captured) > n_graphs) == (most > 0)
        for row in rows:
            row.tokens[-1] = 5  # whatever was sampled: the same both times
        answer_all(engine, rows, 2, chunk=lambda: 1 << 20)  # reads what the prompts have written
        found.append([[dict(token.top) for token in row.found] for row in rows])
    engine.close()
    for graph, launches in zip(*found, strict=True):
        for ours, theirs in zip(graph, launches, strict=True):
            both = ours.keys() & theirs.keys()
            assert len(both) >= 4
            assert max(abs(ours[token] - theirs[token]) for token in both) < bound
