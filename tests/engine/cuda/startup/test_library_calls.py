"""Calls of a library are made once each, on another thread, before the first pass."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.cuda.startup.library_calls import LibraryCalls
from twolane.engine.model_files.fp8 import FP8, Fp8Rows

CPU, META = torch.device("cpu"), torch.device("meta")


def rows(n: int, width: int = 8) -> torch.Tensor:
    return torch.empty(n, width, dtype=torch.bfloat16, device=META)


class Library:
    """Notes what it is called with, and where."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self._error = error

    def product(self, *arguments: Any, **options: Any) -> None:
        self.calls.append((*arguments, options))
        self.threads.add(threading.get_ident())
        if self._error is not None:
            raise self._error


def test_each_call_is_made_once_with_tensors_of_the_device() -> None:
    library = Library()
    with closing(LibraryCalls(CPU)) as calls:
        for _ in range(3):
            for n in (5, 300):
                calls.take(library.product, rows(n), rows(16), None)
        calls.wait()
    assert [(x.shape, weight.shape, bias) for x, weight, bias, _ in library.calls] == [
        ((5, 8), (16, 8), None),
        ((300, 8), (16, 8), None),
    ]
    given = [value for call in library.calls for value in call if isinstance(value, torch.Tensor)]
    assert {(x.device, x.dtype) for x in given} == {(CPU, torch.bfloat16)}
    assert library.threads.isdisjoint({threading.get_ident()})


def test_quantised_rows_and_options_count_too() -> None:
    library = Library()
    fp8, one = Fp8Rows.empty(5, 8, device=META), torch.ones((), device=META)
    with closing(LibraryCalls(CPU)) as calls:
        for dtype in (torch.bfloat16, torch.float16):
            calls.take(library.product, fp8, dtype=dtype, one=one)
        calls.take(library.product, rows(5), dtype=torch.bfloat16, one=one)
        calls.wait()
    assert [options["dtype"] for _, options in library.calls] == [
        torch.bfloat16, torch.float16, torch.bfloat16,
    ]  # fmt: skip
    assert [type(x) for x, _ in library.calls] == [Fp8Rows, Fp8Rows, torch.Tensor]
    first, options = library.calls[0]
    assert (first.values.device, first.values.dtype) == (CPU, FP8)
    assert (first.scales.shape, options["one"].shape, options["one"].device) == ((5,), (), CPU)


def test_a_fault_of_our_own_is_raised_by_wait() -> None:
    library = Library(TypeError("no such option"))
    with closing(LibraryCalls(CPU)) as calls:
        calls.take(library.product, rows(5))
        with pytest.raises(TypeError, match="no such option"):
            calls.wait()


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("16 GiB"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")],
)
def test_a_call_that_does_not_fit_beside_the_weights_is_left_to_the_passes(
    error: RuntimeError,
) -> None:
    library = Library(error)
    with closing(LibraryCalls(CPU)) as calls:
        calls.take(library.product, rows(5))
        calls.take(library.product, rows(6))
        calls.wait()
    assert len(library.calls) == 2


def test_what_has_not_begun_is_dropped_when_loading_fails() -> None:
    began, release = threading.Event(), threading.Event()
    made: list[int] = []

    def slow(x: torch.Tensor) -> None:
        made.append(len(x))
        began.set()
        assert release.wait(10)

    def fail() -> None:
        with closing(LibraryCalls(CPU)) as calls:
            for n in range(5):
                calls.take(slow, rows(n))
            assert began.wait(10)
            last = [*calls._calls.values()][-1]
            last.add_done_callback(lambda dropped: release.set())
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert made == [0]


def test_what_a_dry_run_finds_is_called_before_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    from twolane.engine.cuda.startup import warmup as module

    def dry_run(
        blueprint: object, expected: object, card: object, take: object, take_call: Any
    ) -> None:
        take_call(library.product, rows(5))

    library = Library()
    monkeypatch.setattr(module, "dry_run_launches", dry_run)
    blueprint = mock.Mock(config=EngineConfig(model_dir=Path("of no model")))
    with module.Warmup(blueprint, CPU, None) as warmup:
        warmup._dry_run(lambda *arguments, **options: None)
        warmup.wait_for_kernels()
        assert len(library.calls) == 1
