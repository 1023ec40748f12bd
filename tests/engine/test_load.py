"""Which device and precision a configuration means on this machine."""

from __future__ import annotations

import pytest
import torch

from twolane.engine.errors import EngineConfigError
from twolane.engine.load import pick_device, pick_dtype


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A machine with a card of the capability that the test is given."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: request.param)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr("twolane.engine.load.find_spec", lambda name: name)


@pytest.mark.parametrize("card", [(9, 0), (10, 0)], indirect=True)
def test_auto_takes_a_card_that_runs_every_kernel(card: None) -> None:
    assert pick_device("auto") == pick_device("cuda") == "cuda"
    assert pick_device("cpu") == "cpu"


@pytest.mark.parametrize("card", [(7, 5), (8, 9)], indirect=True)
def test_auto_leaves_an_older_card_alone_and_cuda_refuses_it(
    card: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert pick_device("auto") == "cpu"
    (line,) = caplog.messages
    assert line.startswith("a card is older than Hopper: the model runs on the CPU")
    with pytest.raises(EngineConfigError, match="a card is older than Hopper"):
        pick_device("cuda")


@pytest.mark.parametrize("card", [(9, 0)], indirect=True)
def test_without_triton_there_is_no_gpu_engine(
    card: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("twolane.engine.load.find_spec", lambda name: None)
    assert pick_device("auto") == "cpu"
    (line,) = caplog.messages
    assert line.startswith("triton is not installed: the model runs on the CPU")
    with pytest.raises(EngineConfigError, match="triton is not installed"):
        pick_device("cuda")


def test_without_a_card_auto_is_the_cpu_and_nothing_needs_saying(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "cpu"
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "cuda", "bfloat16"),
        ("float32", "cuda", "float32"),
        ("bfloat16", "cpu", "bfloat16"),
    ],
)
def test_a_dtype_that_is_not_given_is_the_devices_own(
    given: str, device: str, expected: str
) -> None:
    assert pick_dtype(given, device) == expected
