"""Imports what a GPU engine needs, which takes seconds, beside work that needs no interpreter lock.

main     triton, torch, the engine ------------------------------>
card     cuInit, the card's context --->
prepare        Triton's hash of itself, part of every name in its cache: reads 0.4 GB --->
               its module that calls the driver: built by a C compiler if not in the cache --->

Python compiles torch in two seconds, at every start where its byte code is not installed and cannot
be kept beside its source: then Triton's cache keeps it.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

BYTE_CODE = "python_byte_code"  # a folder in Triton's cache


def import_engine() -> None:
    """Import the modules of a GPU engine. The card is the first one that the process may see; it
    need not work: the engine says what it misses when it is loaded."""
    keep_byte_code("torch")
    with _uncollected():
        threading.Thread(target=_open_card, name="open-card", daemon=True).start()
        if find_spec("triton") is not None:
            import triton  # noqa: F401

            threading.Thread(target=_prepare_triton, name="prepare-triton", daemon=True).start()
        import torch  # noqa: F401

        if find_spec("triton") is not None:
            import twolane.engine.cuda.startup.load  # noqa: F401


def keep_byte_code(package: str) -> None:
    """If that package's byte code is neither there nor about to be, let this process keep all its
    modules' in Triton's cache. Some installers compile nothing, uv among them; Python then cannot
    do so if the files belong to another user, and may not if PYTHONDONTWRITEBYTECODE is set."""
    spec = find_spec(package)
    if spec is None or spec.cached is None or sys.pycache_prefix is not None:
        return
    cached = Path(spec.cached)
    beside = cached.parent if cached.parent.exists() else cached.parent.parent
    will_be_there = not sys.dont_write_bytecode and os.access(beside, os.W_OK)
    if cached.exists() or will_be_there:
        return
    folder = Path(triton_cache(), BYTE_CODE, _installation(str(spec.origin)))
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):  # else what is installed of others would be read no more
        sys.pycache_prefix = str(folder)
        sys.dont_write_bytecode = False


def triton_cache() -> str:
    """Where Triton keeps kernels, without importing it."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")
    return os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache")


def _installation(origin: str) -> str:
    """Python compiles again what has another time or size. Files of an image may all have the same
    time: so these have a folder for each time that the image was unpacked."""
    facts = [f"{path} {os.stat(path).st_ctime_ns}" for path in (origin, __file__)]
    return hashlib.sha256(" ".join(facts).encode()).hexdigest()[:16]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Modules are not garbage: looking for it takes 0.2 s, now and later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _open_card() -> None:
    """Create the card's primary context, which torch uses, too. It lives as long as the process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # no driver: the engine says so
        return
    if driver.cuInit(0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)


def _prepare_triton() -> None:
    """Do what Triton would do before its first kernel, and remembers."""
    from triton.runtime.cache import triton_key

    triton_key()
    with suppress(Exception):  # no driver, no compiler: the engine says so
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()
