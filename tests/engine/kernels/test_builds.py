"""What the compiler makes of each kernel for Hopper, checked without a card.

For kernels that cannot be interpreted (see conftest.py) this is all that can be.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.engine.kernels.entries import entry_kernels

SHARED_BYTES = 227 * 1024
FEW_WORDS = {"_plan_kernel", "_row_kernel"}  # read single words, and few of them
SUMS = {"streamed_kernel"}  # partial ones, in pairs as the tensor cores left them
SCALES = {"prefill fp8"}  # two of a page's scales a thread
BUILT_S = 840  # 100 s on two quiet cores
pytestmark = pytest.mark.timeout(BUILT_S + 60)
Facts = dict[str, list[dict[str, Any]]]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def built() -> Facts:
    """name -> facts of each kernel of that launch; in a process without the interpreter."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("builds.py")],
        env=env | {"PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: Facts = json.loads(done.stdout)
    return report


def of(built: Facts, prefix: str) -> list[dict[str, Any]]:
    """The facts of the launches whose names begin so."""
    return [fact for name, facts in built.items() if name.startswith(prefix) for fact in facts]


def test_every_kernel_is_built(built: Facts) -> None:
    names = {fact["name"] for fact in of(built, "")}
    assert {kernel.name for kernel in entry_kernels()} - names == set()


def test_no_kernel_spills_registers(built: Facts) -> None:
    assert [fact for fact in of(built, "") if fact["spill_bytes"]] == []


def test_no_kernel_makes_an_fp8_number_wide_that_it_just_made(built: Facts) -> None:
    """CUDA 12.8's assembler reads registers before they are set there (seen with four pairs)."""
    assert [fact for fact in of(built, "") if fact["rewidened"]] == []


@pytest.mark.parametrize("prefix", ["tall", "streamed", "turned", "prefill overlapped"])
def test_products_wait_for_each_other_only_where_the_kernel_says(built: Facts, prefix: str) -> None:
    found = of(built, prefix)
    assert found
    assert [fact for fact in found if fact["is_serialized"]] == []


def test_every_kernel_fits_the_shared_memory_of_a_multiprocessor(built: Facts) -> None:
    assert [fact for fact in of(built, "") if fact["shared_bytes"] > SHARED_BYTES] == []


def test_prefill_multiplies_with_wgmma_alone(built: Facts) -> None:
    for fact in of(built, "prefill"):
        assert fact["wgmma"] > 0, fact
        assert fact["mma"] == 0, fact
        assert fact["tensor_copies"] > 0, fact


def test_decode_brings_whole_pages_by_tensor_copies_and_edges_by_wide_ones(built: Facts) -> None:
    for fact in of(built, "decode"):
        assert fact["mma"] > 0, fact
        assert fact["tensor_copies"] > 0, fact


@pytest.mark.parametrize("name", ["turned", "turned overlapping", "turned window"])
def test_an_fp8_pool_is_multiplied_as_stored_by_wgmma_four_programs_at_a_time(
    built: Facts, name: str
) -> None:
    (fact,) = built[name]
    assert fact["wgmma"] == 8
    assert fact["mma"] == 0
    assert fact["tensor_copies"] > 0
    assert 4 * fact["shared_bytes"] <= SHARED_BYTES
    assert fact["registers"] <= 128


@pytest.mark.parametrize("name", ["decode", "decode overlapping", "decode window"])
def test_two_programs_of_decode_share_a_multiprocessor(built: Facts, name: str) -> None:
    (fact,) = built[name]
    assert 2 * fact["shared_bytes"] <= SHARED_BYTES


def test_kernels_access_sixteen_bytes_at_a_time(built: Facts) -> None:
    for name, fact in ((name, fact) for name, facts in built.items() for fact in facts):
        assert fact["narrow_vectors"] == 0 or name in SCALES or fact["name"] in SUMS, fact
        wide = fact["wide_copies"] + fact["tensor_copies"]
        assert wide > 0 or fact["name"] in FEW_WORDS, fact


def test_streamed_products_bring_both_sides_by_tensor_copies_and_leave_room_beside_them(
    built: Facts,
) -> None:
    streamed = of(built, "streamed")
    assert len(streamed) == 72
    for fact in streamed:
        assert fact["wgmma"] > 0, fact
        assert fact["mma"] == 0, fact
        assert fact["tensor_copies"] >= 3, fact  # rows; weights, before the wait and after it
        # Room for a norm's program, which the next launch needs while this one still runs.
        assert fact["shared_bytes"] <= 215 * 1024, fact
        assert fact["registers"] <= 136, fact
    assert all(fact["tensor_copies"] >= 5 for fact in of(built, "streamed gated"))  # and of ups
    (parts,), (part,) = built["streamed out 96"], built["streamed out 128"]
    assert parts["tensor_copies"] == part["tensor_copies"] + 2  # rows in three boxes
    assert parts["wgmma"] == 2 * part["wgmma"]  # of 64 rows, and of 32


def test_products_of_many_rows_bring_and_take_all_by_tensor_copies(built: Facts) -> None:
    (fact,) = built["tall gated"]
    # Two groups; a chunk's 64 columns 16 at a time: of the first two chunks, and in the loop.
    assert fact["wgmma"] == 2 * 3 * 4
    assert fact["mma"] == 0
    assert fact["tensor_copies"] > 0
    assert fact["wide_copies"] + fact["narrow_vectors"] == 0
