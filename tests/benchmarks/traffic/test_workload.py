import numpy as np
import pytest

from benchmarks.traffic.trace import Trace
from benchmarks.traffic.workload import TRACES, UnknownWorkloadError, Workload, find_workload


def _draw(name: str) -> tuple[np.ndarray, np.ndarray]:
    workload = find_workload(name)
    assert isinstance(workload, Workload)
    rng = np.random.default_rng(3)
    return workload.prompt.draw(100_000, rng), workload.output.draw(100_000, rng)


@pytest.mark.parametrize(
    ("name", "prompt_mean", "output_mean"),
    [("chat", 755, 200), ("code", 171, 98), ("summarise", 1_974, 91), ("balanced", 1_024, 512)],
)
def test_mean_lengths_are_those_of_the_definition(
    name: str, prompt_mean: float, output_mean: float
) -> None:
    prompt, output = _draw(name)
    assert prompt.mean() == pytest.approx(prompt_mean, rel=0.015)
    assert output.mean() == pytest.approx(output_mean, rel=0.015)
    assert min(prompt.min(), output.min()) >= 1


def test_chat_prompts_are_capped_and_reach_the_cap() -> None:
    prompt, _ = _draw("chat")
    assert prompt.max() == 2_048
    assert np.median(prompt) < prompt.mean(), "log-normal: long to the right"


def test_summarise_and_balanced_stay_within_their_bounds() -> None:
    summarise, _ = _draw("summarise")
    prompt, output = _draw("balanced")
    assert (summarise.min(), summarise.max()) == (1_900, 2_048)
    assert (prompt.min(), prompt.max()) == (820, 1_228)
    assert (output.min(), output.max()) == (410, 614)


def test_fixed_lengths_are_written_as_in_x_out() -> None:
    prompt, output = _draw("48x7")
    assert set(prompt) == {48}
    assert set(output) == {7}


@pytest.mark.parametrize(
    ("name", "requests", "prompt_mean", "output_mean", "prompt_p99", "cv"),
    [
        ("azure-code", 8_819, 2_048, 28, 7_436, 13.2),
        ("azure-conv", 19_366, 1_155, 211, 4_142, 1.09),
    ],
)
def test_bundled_traces_are_the_published_ones(
    name: str, requests: int, prompt_mean: float, output_mean: float, prompt_p99: float, cv: float
) -> None:
    assert name in TRACES
    trace = find_workload(name)
    assert isinstance(trace, Trace)
    gaps = np.diff(trace.arrivals_s)
    assert len(trace) == requests
    assert trace.prompt_tokens.mean() == pytest.approx(prompt_mean, abs=0.5)
    assert trace.output_tokens.mean() == pytest.approx(output_mean, abs=0.5)
    assert np.percentile(trace.prompt_tokens, 99) == pytest.approx(prompt_p99, abs=1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.01)


@pytest.mark.parametrize("name", ["chatt", "0x5", "12x", "nowhere/trace.csv"])
def test_an_unknown_workload_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(UnknownWorkloadError, match="summarise"):
        find_workload(name)
