from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.deploy.clusters import changed, model_with
from twolane.deploy.bundled import model_path
from twolane.deploy.process.child import log_to_stderr
from twolane.deploy.process.engine_host import open_engine
from twolane.deploy.process.loading import LoadingLines
from twolane.engine.progress import Loaded, Readied

MODEL = model_with(model_dir=str(model_path()), name="small", device="cpu", n_pages=3)
GB = 10**9


def test_a_line_a_second_says_how_far_it_is_and_the_last_one_how_fast_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="twolane.deploy.process.loading")
    now = 100.0
    lines = LoadingLines("m", clock=lambda: now)
    for i in range(81):  # ten tensors, and 1 GB, a second
        now = 100 + i / 10
        lines(Loaded(i, 80, i * GB // 10, 8 * GB))
    assert len(caplog.messages) == 8
    assert caplog.messages[2] == "loading m: 30 of 80 tensors, 3.0 of 8.0 GB, 1.0 GB/s"
    assert caplog.messages[-1] == "loaded m: 80 tensors, 8.0 GB in 8.0 s, 1.0 GB/s"


def test_making_ready_is_told_once_it_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="twolane.deploy.process.loading")
    now = 10.0
    lines = LoadingLines("m", clock=lambda: now)
    for news in (
        Loaded(0, 1, 0, GB), Loaded(1, 1, GB, GB), Readied("kernels", 60, 78),
        Readied("kernels", 78, 78), Readied("passes", 1, 40), Readied("passes", 40, 40),
    ):  # fmt: skip
        lines(news)
        now += 0.75
    assert caplog.messages == [
        "loaded m: 1 tensors, 1.0 GB in 0.8 s, 1.3 GB/s",
        "making m ready: 78 of 78 kernels",
        "made m ready: 40 passes, in 3.0 s",
    ]


def test_a_model_that_is_there_at_once_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="twolane.deploy.process.loading")
    lines = LoadingLines("m", clock=lambda: 5.0)
    for i in range(3):
        lines(Loaded(i, 2, i * 1000, 2000))
    assert caplog.messages == ["loaded m: 2 tensors, 0.000 GB in 0.0 s, at once"]


@pytest.mark.parametrize("changes", [{}, {"load_format": "random"}, {"tensor_parallel": 2}])
def test_an_engine_says_that_it_has_loaded(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="twolane.deploy.process.loading")
    spec = changed(MODEL, **changes)
    with open_engine(spec, name="w", is_shared=False):
        pass
    assert [line[:13] for line in caplog.messages if line.startswith("loaded")] == ["loaded small:"]


def test_a_worker_shows_these_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("twolane.deploy")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    log_to_stderr()
    assert logging.getLogger("twolane.deploy.process.loading").isEnabledFor(logging.INFO)
