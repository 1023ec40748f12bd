"""The way of an answer's second token: each hop is as long as it was, whoever took it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.gaps.first_gap import FIRST, SECOND, describe, main, of_rows
from benchmarks.gaps.hops import StampError
from benchmarks.gaps.stamps import STAGES, Rows

ROOT = Path(__file__).parents[3]
N, REQUEST_NS, HOP_NS, STEP_NS = 5, 100_000_000, 100_000, 4_000_000


def scene(*, missing: tuple[str, ...] = (), more: int = 2) -> dict[str, Rows]:
    """Requests one after the other. The first token's hops take a tenth of a millisecond each, the
    second's twice that, and its step four milliseconds; `more` steps follow. The next prompt has
    chunks before its last."""
    rows: dict[str, list[tuple[int, int, int, int]]] = {"p": [], "d": [], "r": [], "c": []}

    def add(process: str, stage: str, at: int) -> None:
        if stage not in missing:
            rows[process].append((STAGES.index(stage), 1, 0, at))

    for nth in range(N):
        computed = nth * REQUEST_NS
        add("p", "sampled", computed)
        for i, (process, stage) in enumerate(zip("prrc", FIRST, strict=True), 1):
            add(process, stage, computed + i * HOP_NS)
        now = computed
        for process, stage in zip("pdddddd" + "rrc", SECOND, strict=True):
            now += STEP_NS if stage == "sampled" else 2 * HOP_NS
            add(process, stage, now)
            if stage == "sampled":
                for i in range(1, more + 1):
                    add("d", stage, now + i * STEP_NS)
                    add("c", "received", now + i * STEP_NS + 4 * HOP_NS * 2)
        for i in range(1, 4):
            add("p", "sampled", computed + REQUEST_NS - i * 2 * STEP_NS)
    return {name: np.array(found, np.int64).reshape(-1, 4) for name, found in rows.items()}


def test_each_hop_is_as_long_as_it_was() -> None:
    figures = describe(of_rows(scene(), N))
    for nth, stage in enumerate(FIRST, 1):
        assert figures[f"first {stage}"]["at_p50_ms"] == pytest.approx(0.1 * nth)
        assert figures[f"first {stage}"]["hop_p90_ms"] == pytest.approx(0.1)
    for stage in SECOND:
        expected = 4.0 if stage == "sampled" else 0.2
        assert figures[f"second {stage}"]["hop_p50_ms"] == pytest.approx(expected), stage
    assert figures["step_p50_ms"] == 4.0
    assert figures["first_gap_p50_ms"] == pytest.approx(9 * 0.2 + 4.0 - 4 * 0.1)
    assert figures["first_gap_over_step_ms"] == pytest.approx(9 * 0.2 - 4 * 0.1)


def test_a_row_that_stays_where_it_is_has_fewer_hops() -> None:
    figures = describe(of_rows(scene(missing=("posted", "announced", "written")), N))
    assert [key for key in figures if key.startswith("second")] == [
        f"second {stage}" for stage in SECOND if stage not in ("posted", "announced", "written")
    ]
    assert figures["second joined"]["hop_p50_ms"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("missing", "why"),
    [("joined", "0 rows have joined"), ("received", "received"), ("posted", "not posted")],
)
def test_a_way_with_holes_is_refused_by_name(missing: str, why: str) -> None:
    with pytest.raises(StampError, match=why):
        describe(of_rows(scene(missing=(missing,)), N))


def test_an_answer_without_a_step_after_its_second_token_is_refused() -> None:
    with pytest.raises(StampError, match="three tokens or more"):
        of_rows(scene(more=0), N)


def test_a_small_cluster_is_traced_at_each_length(tmp_path: Path) -> None:
    given = ["--contenders", str(ROOT / "benchmarks/contenders/laptop.toml"), "--only", "split",
             "--length", "64x6", "--length", "32x5", "--requests", "4",
             "--folder", str(tmp_path)]  # fmt: skip
    done = CliRunner().invoke(main, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "longer than a step" in done.output
    found = json.loads((tmp_path / "first_gap.json").read_text())["figures"]["split"]
    assert [*found] == ["64x6", "32x5"]
    for figures in found.values():
        hops = [key.partition(" ")[2] for key in figures if key.startswith("second")]
        assert hops == [stage for stage in SECOND if stage != "submitted"], "of a GPU's engine"
        assert all(of["hop_p50_ms"] > 0 for key, of in figures.items() if key.startswith("second"))


def test_a_running_cluster_cannot_be_traced() -> None:
    done = CliRunner().invoke(main, ["--target", "it=localhost:1"])
    assert done.exit_code == 2
    assert "give --contenders" in done.output
