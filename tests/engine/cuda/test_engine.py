"""The GPU engine gives what the CPU engine gives; see tests/gpu for sizes that matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.step import Engine, Page, RowResult, RowWork, SampledToken
from twolane.params import SamplingParams

pytest.importorskip("triton")

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPT = np.random.default_rng(5).integers(3, 300, 70).tolist()
# Of tests that compare this engine with itself: the interpreter takes as long for each layer.
ONE_LAYER = {"layers": 1, "heads": 2, "kv_heads": 1}


def cuda_engine(
    model_dir: Path, *, exact: bool = False, n_pages: int = 8, graphed_tokens: int | None = None
) -> Engine:
    from twolane.engine.cuda.startup.load import load_cuda_engine
    from twolane.engine.cuda.tuning import Tuning

    config = EngineConfig(model_dir=model_dir, n_pages=n_pages, exact=exact, page_tokens=64)
    tuning = Tuning(graphed_tokens=graphed_tokens)
    return load_cuda_engine(config, device=torch.device("cpu"), tuning=tuning)


def row(
    name: int,
    tokens: Sequence[int],
    start: int,
    n_new: int,
    pages: Sequence[int],
    *,
    n_prompt: int,
    params: SamplingParams = GREEDY,
    follows: bool = False,
) -> RowWork:
    sample = start + n_new == len(tokens) + follows
    held = [Page(page) for page in pages]
    return RowWork(name, tokens, start, n_new, held, n_prompt, params, sample, follows=follows)


def token(result: RowResult) -> int:
    assert not result.error, result.error
    return result.tokens[0].token


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_prefill_in_chunks_then_decode_gives_the_tokens_of_the_cpu_engine(
    family: str, model_dir: Callable[[str], Path], answer: Callable[..., list[SampledToken]]
) -> None:
    expected = answer(
        load_engine(EngineConfig(model_dir=model_dir(family), n_pages=16)),
        PROMPT, replace(GREEDY, top_logprobs=3), 3,
    )  # fmt: skip
    found = answer(
        cuda_engine(model_dir(family)),
        PROMPT, replace(GREEDY, top_logprobs=3), 3, chunk_tokens=40,
    )  # fmt: skip
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token == theirs.token
        assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-4)
        assert [t for t, _ in ours.top] == [t for t, _ in theirs.top]


def test_a_row_follows_its_sample_that_the_host_has_not_seen(
    model_dir: Callable[..., Path],
) -> None:
    engine = cuda_engine(model_dir("llama", **ONE_LAYER))
    tokens = PROMPT[:20]
    first = engine.submit([row(1, tokens, 0, 20, [2], n_prompt=20)])
    second = engine.submit([row(1, tokens, 20, 1, [2], n_prompt=20, follows=True)])

    known = [*tokens, token(first.result()[0])]
    ahead = token(second.result()[0])
    (again,) = engine.run([row(1, known, 20, 1, [2], n_prompt=20)])
    assert token(again) == ahead


def test_decode_rows_and_chunks_share_a_step(model_dir: Callable[..., Path]) -> None:
    engine = cuda_engine(model_dir("mistral", **ONE_LAYER))
    one, two = PROMPT[:30], PROMPT[30:60]
    (alone,) = engine.run([row(2, two, 0, 30, [5], n_prompt=30)])
    first = token(engine.run([row(1, one, 0, 30, [1], n_prompt=30)])[0])
    (next_alone,) = engine.run([row(1, [*one, first], 30, 1, [1], n_prompt=30)])
    together = engine.run(
        [row(2, two, 0, 30, [6], n_prompt=30), row(1, [*one, first], 30, 1, [1], n_prompt=30)]
    )
    assert [token(r) for r in together] == [token(alone), token(next_alone)]


@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")  # in rows of padding
@pytest.mark.parametrize("exact", [False, True])
def test_prompts_beside_rows_run_as_graphs_of_their_own(
    exact: bool, model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from twolane.engine.cuda import engine as module
    from twolane.engine.cuda.graphs import PassGraphs
    from twolane.engine.cuda.inputs import DeviceInputs, HostInputs

    apart, mixed = (
        cuda_engine(model_dir("llama", **ONE_LAYER), exact=exact, graphed_tokens=n) for n in (64, 0)
    )
    shapes: list[tuple[int, bool]] = []
    run = PassGraphs.run

    def noted(self: PassGraphs, host: HostInputs) -> tuple[DeviceInputs, torch.Tensor]:
        shapes.append((host.shape.tokens, bool(host.shape.tiles)))
        return run(self, host)

    monkeypatch.setattr(PassGraphs, "run", noted)
    has_graphs = True
    monkeypatch.setattr(PassGraphs, "has", lambda self, shape: has_graphs)
    one, two, three = PROMPT[:20], PROMPT[20:31], PROMPT[31:40]

    def answers(engine: Engine) -> list[list[int]]:
        """A row of an answer, which follows its sample, before and behind two prompts; then all."""
        (first,) = engine.run([row(1, one, 0, 20, [1], n_prompt=20)])
        tokens = [*one, token(first)]
        shapes.clear()
        beside = [
            row(2, two, 0, 11, [2], n_prompt=11),
            row(1, tokens, 20, 1, [1], n_prompt=20),
            row(3, three, 0, 9, [3], n_prompt=9),
        ]
        step = engine.submit(beside)
        follow = engine.submit(
            [
                row(3, three, 9, 1, [3], n_prompt=9, follows=True),
                row(2, two, 11, 1, [2], n_prompt=11, follows=True),
                row(1, tokens, 21, 1, [1], n_prompt=20, follows=True),
            ]
        )
        return [[token(result) for result in each.result()] for each in (step, follow)]

    found = answers(apart)
    assert shapes[:2] == [(1, False), (32, True)]
    assert answers(mixed) == found
    assert shapes == [(3, False)], "only the rows of answers are alone"
    monkeypatch.setattr(module, "_MOST_APART", 19)
    assert answers(apart) == found
    assert shapes == [(3, False)], "20 tokens are too many"
    monkeypatch.setattr(module, "_MOST_APART", 20)
    has_graphs = False
    assert answers(apart) == found
    assert shapes == [(3, False)], "no graph is captured amid service"


@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")  # in rows of padding
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_prompts_padded_for_a_graph_give_the_bits_of_the_same_prompts_unpadded(
    family: str, model_dir: Callable[..., Path]
) -> None:
    padded, plain = (
        cuda_engine(model_dir(family, **ONE_LAYER), exact=True, graphed_tokens=n) for n in (64, 0)
    )
    long, short = PROMPT[:11], PROMPT[11:16]
    steps = [
        [row(1, long, 0, 7, [1], n_prompt=11), row(2, short, 0, 5, [2], n_prompt=5)],
        [row(1, long, 7, 4, [1], n_prompt=11)],  # does not begin at its prompt's start
        [row(3, PROMPT[:40], 0, 40, [3], n_prompt=40)],
    ]
    for work in steps:
        assert padded.run(work) == plain.run(work)
    pools = [engine._memory.tensor for engine in (padded, plain)]  # type: ignore[attr-defined]
    assert torch.equal(*pools), "padding wrote keys"


def test_a_fault_in_one_row_fails_that_row_alone(model_dir: Callable[..., Path]) -> None:
    engine = cuda_engine(model_dir("qwen3", **ONE_LAYER))
    good, bad = PROMPT[:17], PROMPT[20:37]
    a, b = (token(r) for r in engine.run([row(1, good, 0, 17, [1], n_prompt=17),
                                          row(2, bad, 0, 17, [2], n_prompt=17)]))  # fmt: skip
    fine = row(1, [*good, a], 17, 1, [1], n_prompt=17)
    (expected,) = engine.run([fine])
    engine._memory.tensor.view(torch.float32).view(8, -1)[2].fill_(torch.nan)  # type: ignore[attr-defined]
    results = engine.run(
        [
            row(2, [*bad, b], 17, 1, [2], n_prompt=17),
            fine,
            row(3, [9999], 0, 1, [3], n_prompt=1),
            row(4, [5], 0, 1, [99], n_prompt=1),
        ]
    )
    assert [bool(r.error) for r in results] == [True, False, True, True]
    assert results[1] == expected


def test_parameters_beyond_temperature_choose_as_the_cpu_engine_does(
    model_dir: Callable[..., Path],
) -> None:
    gpu, cpu = (
        cuda_engine(model_dir("llama")),
        load_engine(EngineConfig(model_dir=model_dir("llama"), n_pages=16, page_tokens=64)),
    )
    kinds = [
        SamplingParams(temperature=0.9, seed=7, top_k=5),
        SamplingParams(temperature=1.3, seed=8, top_p=0.7, min_p=0.01),
        SamplingParams(temperature=1.0, seed=9, repetition_penalty=1.5, top_logprobs=2),
        SamplingParams(temperature=0.0, presence_penalty=2.0, frequency_penalty=1.0),
        SamplingParams(temperature=0.0, logit_bias={17: 50.0}),
        SamplingParams(temperature=1.0, seed=3, min_tokens=4, stop_token_ids=tuple(range(50, 200))),
        SamplingParams(temperature=1.0, seed=2**62 + 5),
    ]
    work = [
        row(i, PROMPT[i : i + 12], 0, 12, [i], n_prompt=9, params=params)
        for i, params in enumerate(kinds)
    ]
    for ours, theirs in zip(gpu.run(work), cpu.run(work), strict=True):
        assert token(ours) == token(theirs)
        if theirs.tokens[0].logprob is not None:
            assert ours.tokens[0].logprob == pytest.approx(theirs.tokens[0].logprob, abs=1e-4)


def test_exact_mode_replays_an_answer_one_by_one(model_dir: Callable[..., Path]) -> None:
    engine = cuda_engine(model_dir("qwen2", **ONE_LAYER), exact=True)
    tokens, params = PROMPT[:20], replace(GREEDY, top_logprobs=2)
    found = []
    start = 0
    for _ in range(4):
        (result,) = engine.run(
            [row(1, tokens, start, len(tokens) - start, [1], n_prompt=20, params=params)]
        )
        start = len(tokens)
        tokens = [*tokens, token(result)]
        found.append(result.tokens[0])
    (resumed,) = engine.run([row(2, tokens[:23], 0, 23, [2], n_prompt=20, params=params)])
    assert resumed.tokens[0] == found[3]


def test_results_are_as_many_values_as_rows_were_sampled(model_dir: Callable[..., Path]) -> None:
    engine = cuda_engine(model_dir("llama", **ONE_LAYER))
    work = [row(i, PROMPT[:5], 0, 5, [i], n_prompt=5) for i in range(3)]
    unfinished = row(3, PROMPT[:9], 0, 5, [3], n_prompt=9)
    step: Any = engine.submit([*work, unfinished])
    assert step._latest.shape == (2, 3)
    assert [len(result.tokens) for result in step.result()] == [1, 1, 1, 0]


def test_rows_of_a_later_pass_follow_what_the_last_step_has_sampled(
    model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from twolane.engine.cuda import engine as module

    prompts = [PROMPT[10 * i : 10 * i + 10] for i in range(4)]

    def answers(most_rows: int) -> list[int]:
        """Three rows follow their samples behind a row that does not."""
        monkeypatch.setattr(module, "MAX_ROWS", most_rows)
        engine = cuda_engine(model_dir("llama", **ONE_LAYER))
        (first,) = engine.run([row(3, prompts[3], 0, 10, [3], n_prompt=10)])
        engine.run([row(i, prompts[i], 0, 9, [i], n_prompt=10) for i in range(3)])
        step = engine.submit([row(i, prompts[i], 9, 1, [i], n_prompt=10) for i in range(3)])
        new = row(3, [*prompts[3], token(first)], 10, 1, [3], n_prompt=10)
        behind = [row(i, prompts[i], 10, 1, [i], n_prompt=10, follows=True) for i in range(3)]
        follow = engine.submit([new, *behind])
        return [token(result) for each in (step, follow) for result in each.result()]

    assert answers(2) == answers(1024)


def test_only_rows_of_answers_whose_graphs_are_captured_are_just_launched(
    model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from twolane.engine.cuda.graphs import PassGraphs
    from twolane.engine.cuda.inputs import InputShape
    from twolane.engine.cuda.plans import MAX_ROWS

    engine = cuda_engine(model_dir("llama", **ONE_LAYER))
    answer = row(1, [5, 6, 7], 2, 1, [0], n_prompt=2)
    captured: set[int] = set()
    assert not engine.only_launches([answer]), "there are no graphs without a card"

    def has(self: PassGraphs, shape: InputShape) -> bool:
        assert shape == InputShape(shape.rows, shape.rows, shape.rows, shape.table_pages)
        return shape.rows in captured

    monkeypatch.setattr(PassGraphs, "has", has)
    assert not engine.only_launches([answer])
    captured |= {1, 20, MAX_ROWS}
    assert engine.only_launches([answer])
    assert engine.only_launches([answer] * 17), "padded to 20"
    assert not engine.only_launches([answer] * 2)
    assert engine.only_launches([answer] * (2 * MAX_ROWS))
    assert engine.only_launches([answer] * (MAX_ROWS + 1))
    assert not engine.only_launches([answer] * (MAX_ROWS + 2))
    assert not engine.only_launches([answer, row(2, [5, 6, 7], 1, 2, [0], n_prompt=1)])
    assert not engine.only_launches([row(1, [5, 6, 7], 2, 1, [0], n_prompt=3)]), "of a prompt"
    for params in (
        SamplingParams(top_p=0.9),
        SamplingParams(frequency_penalty=0.5),
        SamplingParams(logit_bias={9: 2.0}),
        SamplingParams(min_tokens=2, temperature=0.0),
        SamplingParams(temperature=0.0, top_logprobs=1),
    ):
        elaborate = replace(answer, params=params)
        assert not engine.only_launches([elaborate]), params
    plain = SamplingParams(temperature=0.7, seed=3, top_logprobs=0, min_tokens=1)
    assert engine.only_launches([replace(answer, params=plain)])
    engine.close()
