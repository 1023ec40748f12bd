"""What a GPU engine refuses as it is loaded, and what it says of a card that is full."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.errors import EngineConfigError, UnsupportedModelError

pytest.importorskip("triton")

GIB = 1 << 30
CPU = torch.device("cpu")


def with_head_dim(source: Path, target: Path, head_dim: int) -> Path:
    """The same config.json with another head_dim; its weights are not looked at."""
    facts = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(facts | {"head_dim": head_dim}))
    return target


@pytest.mark.parametrize("head_dim", [8, 72, 272])
def test_a_head_dim_that_no_kernel_takes_is_refused_by_name(
    head_dim: int, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    from twolane.engine.cuda.startup.load import load_cuda_engine

    config = EngineConfig(model_dir=with_head_dim(model_dir("llama"), tmp_path, head_dim))
    with pytest.raises(UnsupportedModelError, match=f"head_dim is {head_dim}; .* multiple of 16"):
        load_cuda_engine(config, device=CPU)


@pytest.mark.parametrize("page_tokens", [16, 32, 128])
def test_pages_of_another_size_than_kernels_are_tested_for_are_refused(
    page_tokens: int, model_dir: Callable[[str], Path]
) -> None:
    from twolane.engine.cuda.startup.load import load_cuda_engine

    config = EngineConfig(model_dir=model_dir("llama"), n_pages=8, page_tokens=page_tokens)
    with pytest.raises(EngineConfigError, match=f"page_tokens is {page_tokens}; .* must be 64"):
        load_cuda_engine(config, device=CPU)


@pytest.mark.parametrize("part", ["load_weights", "RawMemory", "CudaEngine.capture"])
def test_a_card_that_fills_up_while_loading_is_a_memory_error_with_advice(
    part: str, model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from twolane.engine.cuda.startup import load

    def fill(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.96 GiB")

    monkeypatch.setattr(f"twolane.engine.cuda.startup.load.{part}", fill)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, 140 * GIB))
    words = r"1\.0 of 140\.0 GiB are free on cpu .* --weights fp8, .*--tensor-parallel.*--pages"
    with pytest.raises(MemoryError, match=words):
        load.load_cuda_engine(
            EngineConfig(model_dir=model_dir("llama"), n_pages=8, ready_rows=1), device=CPU
        )


def test_room_for_less_than_a_page_names_what_is_set_aside(
    model_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from twolane.engine.cuda.startup import load

    config = EngineConfig(model_dir=model_dir("llama"))
    card = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * GIB, 140 * GIB))
    assert load._n_pages(config, GIB // 10, card) == 9
    words = r"5\.0 of 140\.0 GiB are free on cuda:0: 4\.0 GiB are set aside .* takes 1024\.0 MiB"
    with pytest.raises(MemoryError, match=words):
        load._n_pages(config, GIB, card)
