"""Kernels are loaded whole, and once, though several threads compile and launch.

Triton 3.6 builds a C module for each signature of a kernel, all of one name, and reads a module's
`launch` after the import. CPython keeps one module a name. A path that is imported a second time
(two kernels of one signature) makes no new module: the newest of that name is filled anew.

    thread 1   import b.so -> module b                                b.launch: now a's, for ever
    thread 2                            import a.so again: b := a

So here one thread at a time imports a path and takes what the module then holds; C compilers run
side by side as before. A kernel has its launcher a moment before its function on the device: a
second thread that would launch it waits for both.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from triton.compiler import CompiledKernel
from triton.runtime import build

_import = build._load_module_from_path
_one_import = threading.Lock()


def load_kernels_once() -> None:
    """From now on, all kernels of this process, whoever launches them. May be called twice."""
    build._load_module_from_path = _module
    CompiledKernel.run = property(_launcher)


def _module(name: str, path: str) -> ModuleType:
    """What the module holds now, in a module that no later import fills anew."""
    held = ModuleType(name)
    with _one_import:  # guard: one import of a launcher
        vars(held).update(vars(_import(name, path)))
    return held


def _launcher(kernel: Any) -> Any:
    if kernel.function is None:
        with kernel.__dict__.setdefault("_one_load", threading.Lock()):  # guard: one load
            kernel._init_handles()
    return kernel._run
