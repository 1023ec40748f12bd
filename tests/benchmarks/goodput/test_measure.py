"""The command, against servers whose capacity is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks.goodput import run
from benchmarks.goodput.measure import main, parse_slo
from benchmarks.load.record import Slo
from tests.benchmarks.completion_double import CompletionDouble, serve
from tests.own_time import own_time

# SLOs as wide as the pauses of a busy machine; a server that is overloaded misses them, too. A wide
# bracket ends the search after the two rates to begin with.
QUICK = [
    *("--workload", "20x4", "--rate", "4", "--rate", "80", "--highest", "80", "--lowest", "2"),
    *("--tolerance", "1", "--repeats", "1", "--slo", "4000/4000", "--slo", "5000/5000"),
    *("--requests", "8", "--window-s", "2", "--warm-up-s", "0.2", "--cool-down-s", "0.2"),
    *("--clients", "1", "--late-ms", "5000"),
]


def _run(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    result = CliRunner().invoke(main, [*QUICK, *arguments, "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    return result.output, json.loads((folder / "goodput.json").read_text())["figures"]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """These servers free nothing between two runs."""
    monkeypatch.setattr(run, "_SETTLE_S", 0.0)


@pytest.mark.timeout(300)
def test_two_protocols_are_measured_by_one_harness(
    open_door: Callable[..., Any], tmp_path: Path
) -> None:
    # One prompt at a time, each 0.05 s: 20 a second at most. The other reads all at once.
    with serve(CompletionDouble(service_s=0.05, gap_s=0.05, together=2)) as slow:
        quick = open_door(ttft_s=0.005, gap_s=0.001)
        targets = [("--target", f"slow={slow.url}"), ("--target", f"quick={quick.endpoint}")]
        with own_time() as took:
            output, figures = _run(tmp_path, *targets[0], *targets[1])
        n_sent = len(slow.requests)
        _, resumed = _run(tmp_path, *targets[0], "--resume")
        assert len(slow.requests) == n_sent, "nothing was left to measure"

    assert resumed["runs"] == figures["runs"]
    runs = {(run["contender"], run["rate_per_s"]): run for run in figures["runs"]}
    assert 2 <= runs["slow", 4.0]["figures"]["tokens_per_message"] < 4, "of four in two messages"
    late_ms = took.lost_s() * 1e3  # that any of them may be, on a busy machine
    assert runs["slow", 4.0]["figures"]["ttft_p50_ms"] >= 50
    assert runs["slow", 4.0]["figures"]["ttft_p90_ms"] < 500 + late_ms
    assert runs["slow", 4.0]["figures"]["request_gap_p99_p90_ms"] < 500 + late_ms
    assert runs["slow", 80.0]["figures"]["ttft_p99_ms"] > 800
    assert figures["served"]["4000 ms / 4000 ms"]["slow"] == "4 (80 misses)"
    assert figures["served"]["5000 ms / 5000 ms"]["slow"] == "4 (80 misses)"
    assert "TTFT alone" in figures["why_missed"]["4000 ms / 4000 ms"]["slow"]
    assert "tokens a message" in output
    assert runs["quick", 4.0]["figures"]["prefill_p50_ms"] == pytest.approx(5)
    assert (tmp_path / "goodput.png").stat().st_size > 10_000


def test_a_run_of_none_but_broken_contenders_fails_and_saves_nothing(tmp_path: Path) -> None:
    contenders = tmp_path / "some.toml"
    contenders.write_text('[broken]\ncommands = ["false"]\nendpoints = ["h:1"]\nready = "up"\n')
    arguments = [*QUICK, "--contenders", str(contenders), "--folder", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "nothing was measured" in result.output
    assert not (tmp_path / "goodput.json").exists()


@pytest.mark.soak
def test_a_contender_that_does_not_start_leaves_the_others_their_turn(tmp_path: Path) -> None:
    contenders = tmp_path / "some.toml"
    contenders.write_text('[broken]\ncommands = ["false"]\nendpoints = ["h:1"]\nready = "up"\n')
    with serve(CompletionDouble(trouble="refuse")) as full:
        output, figures = _run(
            tmp_path, "--contenders", str(contenders), "--target", f"full={full.url}"
        )
    assert "ended with 1" in figures["problems"]["broken"]
    assert {run["contender"] for run in figures["runs"]} == {"full"}
    assert {*figures["runs"][0]["failures"].values()} == {"HTTP_429"}
    assert figures["served"]["4000 ms / 4000 ms"] == {"broken": "–", "full": "below 2"}
    assert "broken" in output


def test_where_no_time_is_left_no_server_is_bothered(tmp_path: Path) -> None:
    with serve(CompletionDouble()) as fine:
        _, figures = _run(tmp_path, "--target", f"fine={fine.url}", "--time-limit-s", "16")
        assert fine.requests == []
    assert "go on with --resume" in figures["problems"]["fine"]
    assert figures["runs"] == []


def test_a_result_of_another_workload_is_not_gone_on_with(tmp_path: Path) -> None:
    saved = {"figures": {"arguments": {"workload": "9x9"}, "runs": []}}
    (tmp_path / "goodput.json").write_text(json.dumps(saved))
    arguments = [*QUICK, "--target", "a=h:1", "--resume", "--folder", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert "another workload" in result.output


def test_an_slo_is_read_in_milliseconds() -> None:
    assert parse_slo("300/15") == Slo(0.3, 0.015)
    with pytest.raises(click.BadParameter):
        parse_slo("fast")
