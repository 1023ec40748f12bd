"""Makes loading of kernels safe when several threads compile and launch.

Triton 3.6 builds a C module for each signature of a kernel, all with one name, and reads a module's
`launch` after the import. CPython keeps one module per name. Importing a path a second time (two
kernels of one signature) creates no new module: it refills the newest module of that name.

    thread 1   import b.so -> module b                                b.launch: now a's, forever
    thread 2                            import a.so again: b := a

So here one thread at a time imports a path and copies the module's content; C compilers still run
in parallel. A kernel gets its launcher shortly before its device function: a second thread that
wants to launch it waits for both.
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
    """Patch Triton, for all kernels of this process and all callers. May be called twice."""
    build._load_module_from_path = _module
    CompiledKernel.run = property(_launcher)


def _module(name: str, path: str) -> ModuleType:
    """A copy of the module's content, which no later import refills."""
    held = ModuleType(name)
    with _one_import:  # guard: one import of a launcher
        vars(held).update(vars(_import(name, path)))
    return held


def _launcher(kernel: Any) -> Any:
    if kernel.function is None:
        with kernel.__dict__.setdefault("_one_load", threading.Lock()):  # guard: one load
            kernel._init_handles()
    return kernel._run
