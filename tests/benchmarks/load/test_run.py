import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.load.run import main
from tests.own_time import own_time

MOST_MS = 400
SLO = ["--slo-ttft-ms", str(MOST_MS), "--slo-gap-ms", str(MOST_MS)]
QUICK = ["--workload", "20x8", "--rate", "40", "--requests", "24", "--seeds", "1", "--clients", "1"]


def _run(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    result = CliRunner().invoke(main, [*arguments, "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    return result.output, json.loads((folder / "load.json").read_text())["figures"]


def test_two_targets_are_loaded_alike_and_compared(
    open_door: Callable[..., Any], tmp_path: Path
) -> None:
    quick, slow = open_door(ttft_s=0.01), open_door(ttft_s=0.5, refuse_every=4)
    targets = ["--target", f"quick={quick.endpoint}", "--target", f"slow={slow.endpoint}"]
    with own_time() as took:
        output, figures = _run(tmp_path, *QUICK, *targets, *SLO)
    late_ms = took.lost_s() * 1e3  # that any of them may be, on a busy machine

    sent = [sorted(list(r.token_ids.ids) for r in door.requests) for door in (quick, slow)]
    assert sent[0] == sent[1], "the same prompts went to both"
    sampling = quick.requests[-1].sampling
    assert (sampling.max_tokens, sampling.ignore_eos) == (8, True)
    assert {len(ids) for ids in sent[0]} == {20}
    assert max(max(ids) for ids in sent[0]) < 100, "ids are within the model's vocabulary"

    load = figures["loads"]["40/s"]
    assert load["quick"]["figures"]["failed"] == 0
    told = load["quick"]["requests"]
    pairs = [*zip(told["ttft_ms"], told["gap_p99_ms"], strict=True)]
    waits_ms = [*map(max, pairs)]
    held_share = sum(wait_ms <= MOST_MS for wait_ms in waits_ms) / 24
    assert load["quick"]["figures"]["held_share"] == pytest.approx(held_share, abs=1e-6)
    assert sum(wait_ms <= MOST_MS + late_ms for wait_ms in waits_ms) > 0.8 * 24
    assert 10 <= load["quick"]["figures"]["ttft_p50_ms"] < MOST_MS + late_ms
    assert load["quick"]["figures"]["gap_p50_ms"] < MOST_MS + late_ms
    # seven gaps of 2 ms after 10, of which a client that is late sees some at once
    assert all(ttft + 7 * gap >= 24 for ttft, gap in pairs)
    # 8 requests warm up, so that every fourth of the 24 measured ones is refused.
    assert load["slow"]["failures"] == {"OVERLOADED": 6}
    assert load["slow"]["figures"]["held_share"] == 0
    assert load["slow"]["figures"]["ttft_p50_ms"] >= 500
    assert len(load["slow"]["requests"]["ttft_ms"]) == 24
    assert figures["served_rate_per_s"]["slow"] is None
    assert "slow / quick" in output
    assert (tmp_path / "load.png").stat().st_size > 10_000


@pytest.mark.parametrize("multiplexes", [True, False])
def test_requests_go_as_the_sdk_sends_them(
    multiplexes: bool, open_door: Callable[..., Any], tmp_path: Path
) -> None:
    """On one stream of each process, or by single calls to a router without such streams."""
    door = open_door(multiplexes=multiplexes, ttft_s=0.001, gap_s=0.001)
    load = ["--workload", "5x4", "--requests", "3", "--rate", "50", "--seeds", "1"]
    target = f"sdk=sdk://{door.endpoint}"
    _, figures = _run(tmp_path, "--target", target, *load, "--clients", "1")
    assert figures["loads"]["50/s"]["sdk"]["failures"] == {}
    assert figures["loads"]["50/s"]["sdk"]["figures"]["failed"] == 0
    assert len(door.requests) > 3  # some of them to warm up
    assert (0 < door.streams < len(door.requests)) == multiplexes


def test_an_answer_of_the_wrong_length_is_a_failure(
    open_door: Callable[..., Any], tmp_path: Path
) -> None:
    short, whole = open_door(drop_last_token=True), open_door()
    targets = ["--target", f"short={short.endpoint}", "--target", f"whole={whole.endpoint}"]
    load = ["--workload", "5x4", "--requests", "3", "--rate", "50", "--seeds", "1"]
    _, figures = _run(tmp_path, *targets, *load, "--clients", "1", "--at-once")
    assert figures["loads"]["50/s"]["short"]["failures"] == {"WRONG_LENGTH": 3}
    assert figures["loads"]["50/s"]["whole"]["failures"] == {}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--target", "nothing"], "NAME=HOST:PORT"),
        (["--target", "a=h:1", "--target", "a=h:2"], "the same name"),
        (["--target", "a=h:1", "--workload", "nonsense"], "nonsense"),
    ],
)
def test_wrong_arguments_are_told_apart(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(main, [*arguments, "--rate", "1"])
    assert result.exit_code != 0
    assert complaint in result.output
