"""What the compiler makes of each kernel for Hopper, checked without a card."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

Facts = dict[str, list[dict[str, Any]]]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def built() -> Facts:
    """name -> facts of each kernel of that launch; in a process without the interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("builds.py")],
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: Facts = json.loads(done.stdout)
    return report


def test_no_kernel_spills_registers(built: Facts) -> None:
    spills = {name: [f["spill_bytes"] for f in kernels] for name, kernels in built.items()}
    assert all(not any(spilled) for spilled in spills.values()), spills


@pytest.mark.parametrize("name", ["prefill", "prefill overlapped"])
def test_prefill_multiplies_with_wgmma_alone(built: Facts, name: str) -> None:
    (fact,) = built[name]
    assert fact["wgmma"] > 0
    assert fact["mma"] == 0
    assert fact["tensor_copies"] > 0


@pytest.mark.parametrize("name", ["decode", "decode window", "decode fp8"])
def test_decode_brings_whole_pages_by_tensor_copies_and_edges_by_wide_ones(
    built: Facts, name: str
) -> None:
    (fact,) = built[name]
    assert fact["mma"] > 0
    assert fact["tensor_copies"] > 0
    assert fact["wide_copies"] > 0
    assert 2 * fact["shared_bytes"] <= 227 * 1024  # two programs share a multiprocessor


@pytest.mark.parametrize("name", ["embed", "norm", "rope", "silu", "copy", "gemv"])
def test_streaming_kernels_access_sixteen_bytes_at_a_time(built: Facts, name: str) -> None:
    (fact,) = built[name]
    assert fact["wide_copies"] > 0
    assert fact["narrow_vectors"] == 0
