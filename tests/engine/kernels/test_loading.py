"""Several threads load kernels: each kernel keeps its own launcher, and is launched whole."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton")

from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import build

from twolane.engine.kernels import loading

NAME = "__launcher_of_a_test"
SOURCE = """
#include <Python.h>
static PyObject *launch(PyObject *self, PyObject *nothing) {{ return PyLong_FromLong({number}); }}
static PyMethodDef methods[] = {{{{"launch", launch, METH_NOARGS, 0}}, {{0}}}};
static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, methods}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&definition); }}
"""

needs_compiler = pytest.mark.skipif(
    not (shutil.which("gcc") or shutil.which("clang")), reason="no C compiler"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(autouse=True)
def as_imported_by_triton(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has loaded no launcher yet."""
    monkeypatch.setattr(build, "_load_module_from_path", loading._import)
    monkeypatch.setattr(CompiledKernel, "run", CompiledKernel.run)
    with knobs.cache.scope():
        knobs.cache.dir = str(cache)
        yield


def load(number: int) -> ModuleType:
    """As Triton loads the launcher of a signature: built, or found in its cache, and imported."""
    module: ModuleType = build.compile_module_from_src(
        SOURCE.format(number=number, name=NAME), NAME
    )
    return module


def what_the_second_launches() -> int:
    """Its module is there; before its function is read, the first is loaded for another kernel."""
    load(1)
    second = load(2)
    load(1)
    launched: int = second.launch()
    return launched


@needs_compiler
def test_a_launcher_keeps_its_function_while_others_are_loaded() -> None:
    loading.load_kernels_once()
    assert what_the_second_launches() == 2


@needs_compiler
def test_imported_as_triton_does_it_a_launcher_takes_the_function_of_another() -> None:
    assert what_the_second_launches() == 1, "Triton or CPython has mended it: so may we"


@needs_compiler
def test_a_launcher_keeps_its_function_though_others_were_imported_before() -> None:
    """As by whoever launched kernels before an engine was loaded: they hold the newest module."""
    first, newest = load(1), load(2)
    assert newest.launch() == 2
    loading.load_kernels_once()
    launchers = [load(1), load(2), load(1)]
    assert [launcher.launch() for launcher in launchers] == [1, 2, 1]
    assert first.launch() == 1


@needs_compiler
def test_no_thread_imports_a_launcher_while_another_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loading.load_kernels_once()
    load(1)
    others: list[Future[ModuleType]] = []

    def slowly(name: str, path: str) -> ModuleType:
        module: ModuleType = original(name, path)
        if not is_slow.is_set():
            is_slow.set()
            others.append(pool.submit(load, 1))
            wait(others, 0.2)  # it cannot end before the module is taken
        return module

    original, is_slow = loading._import, threading.Event()
    monkeypatch.setattr(loading, "_import", slowly)
    with ThreadPoolExecutor(1) as pool:
        assert load(2).launch() == 2
        assert others[0].result().launch() == 1


def test_a_thread_that_meets_a_half_loaded_kernel_waits_for_the_rest() -> None:
    loading.load_kernels_once()

    def load_in_two_parts() -> None:
        if kernel._run is None:  # it is the first who loads
            kernel._run = "launcher"
            others.append(pool.submit(lambda: (kernel.run, kernel.function)))
            wait(others, 0.2)  # it cannot end before this does
            kernel.function = "function"

    others: list[Future[tuple[Any, Any]]] = []
    kernel: Any = CompiledKernel.__new__(CompiledKernel)
    kernel.function = kernel._run = None
    kernel._init_handles = load_in_two_parts
    with ThreadPoolExecutor(1) as pool:
        assert kernel.run == "launcher"
        assert others[0].result() == ("launcher", "function")
