"""The engine as its users see it: spec, pool memory, faults of one row, config."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.errors import EngineConfigError
from twolane.engine.step import Engine, Page, RowWork, SampledToken
from twolane.params import SamplingParams

Answer = Callable[..., list[SampledToken]]
ModelDir = Callable[[str], Path]
GREEDY = SamplingParams(temperature=0.0, top_logprobs=2)


def row(name: int, tokens: list[int], first_page: int, **changes: Any) -> RowWork:
    """A whole prompt computed at once, on pages of its own."""
    n_pages = -(-len(tokens) // 16)
    pages = [Page(first_page + i) for i in range(n_pages)]
    work = RowWork(name, tokens, 0, len(tokens), pages, len(tokens), GREEDY, True)
    return replace(work, **changes)


def test_the_spec_states_the_facts(model_dir: ModelDir) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("llama"), n_pages=8))
    spec = engine.spec
    assert isinstance(engine, Engine)
    assert (spec.model, spec.n_pages, spec.page_tokens) == ("llama", 8, 16)
    assert spec.page_bytes == 2 * 2 * 2 * 16 * 16 * 4 == engine.pool.shape[1]
    assert (spec.max_context_tokens, spec.vocab_size, spec.eos_token_ids) == (1024, 320, (2,))
    assert spec.layout == (
        '{"dtype":"float32","head_dim":16,"kv_heads":2,"layers":2,"page_tokens":16}'
    )


def test_fingerprints_differ_where_answers_may(model_dir: ModelDir, tmp_path: Path) -> None:
    base = EngineConfig(model_dir=model_dir("llama"), n_pages=8)
    same = replace(base, n_pages=9, page_tokens=64, model_name="other", max_context_tokens=99)
    fast = replace(base, exact=False)
    others = [
        replace(base, dtype="bfloat16"),
        fast,
        replace(base, threads=2),
        replace(base, model_dir=model_dir("mistral")),
        replace(base, load_format="random"),
        replace(base, load_format="random", seed=1),
    ]
    reference = load_engine(base).spec.fingerprint
    assert load_engine(same).spec.fingerprint == reference
    assert load_engine(replace(fast, threads=2)).spec.fingerprint == (
        load_engine(fast).spec.fingerprint
    ), "outside exact mode the thread count promises nothing"
    assert len({reference, *(load_engine(c).spec.fingerprint for c in others)}) == 7


def test_pool_memory_may_be_a_shared_file(
    model_dir: ModelDir, tmp_path: Path, answer: Answer
) -> None:
    config = EngineConfig(model_dir=model_dir("qwen2"), n_pages=8)
    page_bytes = load_engine(config).spec.page_bytes
    path = tmp_path / "pool"
    path.write_bytes(bytes(8 * page_bytes))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        engine = load_engine(config, pool_memory=memoryview(memory))
        answer(engine, list(range(3, 40)), GREEDY, 2)
        written = np.frombuffer(path.read_bytes(), np.uint8).reshape(8, page_bytes)
        assert np.array_equal(written, engine.pool)
        assert written.any(axis=1).tolist() == [True] * 3 + [False] * 5
        engine.close()
        engine.close()
        del engine, written


def test_pool_memory_that_is_too_small_or_read_only_is_refused(model_dir: ModelDir) -> None:
    config = EngineConfig(model_dir=model_dir("qwen2"), n_pages=8)
    for memory in (memoryview(bytearray(100)), memoryview(bytes(1 << 20))):
        with pytest.raises(EngineConfigError, match="writable bytes"):
            load_engine(config, pool_memory=memory)


def test_a_bad_row_fails_alone(model_dir: ModelDir) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("llama"), n_pages=16))
    prompt = list(range(3, 43))
    fine = engine.run([row(7, prompt, 0)])
    bad = {
        "outside the vocabulary": row(1, [*prompt[:5], 320], 4),
        "outside the vocabulary of 320": row(1, [-1, 5], 4),
        "need 3 pages, the row has 2": row(2, prompt, 4, pages=[Page(4), Page(5)]),
        "not in this pool of 16": row(3, prompt, 14),
        "exceed the context of 1024": row(4, [5] * 1025, 4),
        "logit_bias names token 999": row(5, [5], 4, params=SamplingParams(logit_bias={999: 1.0})),
    }
    for complaint, work in bad.items():
        results = engine.run([work, row(7, prompt, 0), work])
        assert complaint in results[0].error == results[2].error
        assert results[0].row == work.row
        assert results[1] == fine[0]


def test_poisoned_pages_fail_their_own_row_alone(model_dir: ModelDir) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("llama"), n_pages=16))
    prompt = list(range(3, 43))
    fine = engine.run([row(7, prompt, 0)])
    engine.run([row(1, prompt, 4)])
    engine.pool[5] = 0xFF
    poisoned = row(1, prompt, 4, start=39, n_new=1)
    results = engine.run([poisoned, row(7, prompt, 0), replace(poisoned, sample=False)])
    assert results[0].error == results[2].error == "the model's activations are not finite"
    assert results[1] == fine[0]


def test_what_a_page_held_before_does_not_matter(model_dir: ModelDir, answer: Answer) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("mistral"), n_pages=16))
    prompt = list(range(3, 43))
    expected = answer(engine, prompt, GREEDY, 12)
    for junk in (0xFF, 0x7F, 0x80):
        engine.pool[:] = junk
        assert answer(engine, prompt, GREEDY, 12, chunk_tokens=7) == expected


def test_a_row_writes_its_own_pages_only(model_dir: ModelDir) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("qwen3"), n_pages=16))
    engine.pool[:] = 0x11
    engine.run([row(0, list(range(3, 43)), 4)])
    touched = (engine.pool != 0x11).any(axis=1)
    assert np.flatnonzero(touched).tolist() == [4, 5, 6]


def test_pages_before_the_chunk_are_only_read(model_dir: ModelDir) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("qwen3"), n_pages=16))
    prompt = list(range(3, 43))
    engine.run([row(0, prompt, 4)])
    before = engine.pool.copy()
    engine.run([row(0, prompt, 4, start=32, n_new=8)])
    assert np.array_equal(engine.pool[4:6], before[4:6])


def test_engines_of_one_process_do_not_disturb_each_other(
    model_dir: ModelDir, answer: Answer
) -> None:
    first = load_engine(EngineConfig(model_dir=model_dir("llama"), n_pages=8))
    prompt = list(range(3, 43))
    expected = answer(first, prompt, GREEDY, 3)
    second = load_engine(EngineConfig(model_dir=model_dir("qwen3"), n_pages=8, threads=2))
    answer(second, prompt, GREEDY, 3)
    assert torch.get_num_threads() == 2
    assert answer(first, prompt, GREEDY, 3) == expected
    assert torch.get_num_threads() == 1


def test_a_chunk_without_sampling_yields_no_token(model_dir: ModelDir) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("llama"), n_pages=8))
    (result,) = engine.run([row(3, [5, 6, 7], 0, sample=False)])
    assert (result.row, result.tokens, result.error) == (3, (), "")
    assert engine.run([]) == []


def test_random_weights_are_the_same_on_every_worker(model_dir: ModelDir, answer: Answer) -> None:
    config = EngineConfig(model_dir=model_dir("qwen2"), n_pages=8, load_format="random", seed=3)
    prompt = list(range(3, 43))
    found = [
        answer(load_engine(replace(config, seed=seed)), prompt, GREEDY, 3) for seed in (3, 3, 4)
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dtype": "float16"}, "dtype is 'float16'; it must be auto, float32 or bfloat16"),
        ({"load_format": "gguf"}, "load_format is 'gguf'"),
        ({"n_pages": 4, "kv_bytes": 4096}, "give one"),
        ({"n_pages": 0}, "n_pages is 0"),
        ({"kv_bytes": -1}, "kv_bytes is -1"),
        ({"max_context_tokens": 0}, "max_context_tokens is 0"),
        ({"page_tokens": 24}, "page_tokens is 24; it must be a multiple of 16"),
        ({"page_tokens": 0}, "page_tokens is 0"),
        ({"threads": 0}, "threads is 0; it must be 1 to 256"),
        ({"kv_bytes": 1000}, "kv_bytes is 1000; one page takes 8192"),
        ({"max_context_tokens": 4096}, "positions end at 1024"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], complaint: str, model_dir: ModelDir
) -> None:
    with pytest.raises(EngineConfigError, match=complaint):
        load_engine(EngineConfig(model_dir=model_dir("llama"), **options))


def test_the_pool_is_as_large_as_its_budget(model_dir: ModelDir) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("llama"), kv_bytes=100_000))
    assert engine.spec.n_pages == 12
    assert engine.pool.nbytes <= 100_000
