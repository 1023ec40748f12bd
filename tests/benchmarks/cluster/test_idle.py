import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.cluster.idle import Times, compare, describe, main, of_answers
from benchmarks.load.caller import Answer
from tests.benchmarks.completion_double import CompletionDouble, serve


def _times(ttft_ms: float, first_gap_ms: float, n: int = 50) -> Times:
    rng = np.random.default_rng(0)
    near = 1 + rng.normal(0, 0.02, n)
    return Times(ttft_ms * near, first_gap_ms * near, 5.0 * near)


def test_an_answers_times_are_told_apart() -> None:
    answer = Answer(10.0)
    for at_s in (10.1, 10.13, 10.14, 10.15, 10.18):
        answer.note(1, at_s)
    times = of_answers([answer])
    assert times.ttft_ms.tolist() == pytest.approx([100])
    assert times.first_gap_ms.tolist() == pytest.approx([30])
    assert times.later_gap_ms.tolist() == pytest.approx([10])


def test_ratios_come_with_an_interval_that_holds_them() -> None:
    figures = compare(_times(42.0, 7.0), _times(40.0, 5.0))
    assert figures["ttft_ratio"] == pytest.approx(1.05, abs=1e-3)
    low, high = figures["ttft_ratio_low"], figures["ttft_ratio_high"]
    assert low is not None
    assert high is not None
    assert low <= 1.05 <= high
    assert figures["first_gap_over_step_ms"] == pytest.approx(2.0, abs=0.1)


def test_where_tokens_come_together_there_is_no_ratio_of_their_gaps() -> None:
    times = Times(np.full(4, 40.0), np.full(4, 5.0), np.zeros(4))
    figures = compare(times, times)
    assert [figures[f"later_gap_ratio{end}"] for end in ("", "_low", "_high")] == [None] * 3
    assert figures["ttft_ratio"] == 1.0
    assert figures["first_gap_over_step_ms"] == 5.0


def test_spread_is_told() -> None:
    figures = describe(_times(40.0, 5.0))
    quartiles = [figures[f"ttft_{p}_ms"] for p in ("p25", "p50", "p75", "p99")]
    assert quartiles == sorted(quartiles)
    assert quartiles[1] == pytest.approx(40, rel=0.02)


def test_idle_servers_of_both_protocols_are_asked_in_turn(
    open_door: Callable[..., Any], tmp_path: Path
) -> None:
    quick = open_door(ttft_s=0.005, gap_s=0.002)
    with serve(CompletionDouble(service_s=0.08, gap_s=0.002)) as slow:
        arguments = [
            *("--target", f"quick={quick.endpoint}", "--target", f"slow={slow.url}"),
            *("--length", "20x4", "--length", "30x3", "--requests", "6"),
        ]
        result = CliRunner().invoke(main, [*arguments, "--folder", str(tmp_path)])
        assert result.exit_code == 0, result.output
        sent = [request["prompt"] for request in slow.requests]
    assert sent == [list(request.token_ids.ids) for request in quick.requests]
    assert [len(prompt) for prompt in sent] == [20] * 11 + [30] * 11, "five of each warm up"
    assert len({*map(tuple, sent)}) == 22
    lengths = json.loads((tmp_path / "idle.json").read_text())["figures"]["lengths"]
    assert lengths["20x4"]["slow"]["figures"]["ttft_p50_ms"] >= 80
    assert lengths["20x4"]["slow"]["to_first"]["ttft_ratio"] > 1
    assert lengths["20x4"]["quick"]["to_first"]["ttft_ratio"] == 1
    assert len(lengths["30x3"]["slow"]["requests"]["ttft_ms"]) == 6
    assert (tmp_path / "idle.png").stat().st_size > 10_000


def test_a_failure_ends_the_measurement(tmp_path: Path) -> None:
    with serve(CompletionDouble(trouble="refuse")) as full:
        arguments = ["--target", f"full={full.url}", "--length", "9x3", "--folder", str(tmp_path)]
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "full: HTTP_429" in result.output


@pytest.mark.parametrize("length", ["9", "9x2", "0x5", "axb"])
def test_lengths_need_a_prompt_and_three_tokens(length: str) -> None:
    result = CliRunner().invoke(main, ["--target", "a=h:1", "--length", length])
    assert result.exit_code == 2
    assert "INxOUT" in result.output
