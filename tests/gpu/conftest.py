"""Tests that need a card: they skip by themselves where there is none, saying so.

`make test-gpu` runs them; the other tests' conftest.py hides the card.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.seeds import pytest_runtest_setup as pytest_runtest_setup

try:
    import safetensors  # noqa: F401
    import torch
    import transformers  # noqa: F401
    import triton  # noqa: F401

    REASON = "" if torch.cuda.is_available() else "no CUDA device"
except ImportError as error:
    REASON = f"{error.name} is not installed"
    collect_ignore_glob = ["test_*.py"]


@contextmanager
def locked(paths: pytest.TempPathFactory, how: int) -> Iterator[None]:
    """Between the processes of one run."""
    with (paths.getbasetemp().parent / "cards.lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


@pytest.fixture
def cards_alone() -> None:
    """For tests that look at how much of a card's memory is free: no other test runs meanwhile."""


@pytest.fixture(autouse=True)
def cards(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Tests of several processes share the cards."""
    is_alone = "cards_alone" in request.fixturenames
    with locked(tmp_path_factory, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH):
        yield


@pytest.fixture(scope="module")
def cards_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For engines that a module's tests share."""
    with locked(tmp_path_factory, fcntl.LOCK_SH):
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Without a package no test is even collected: that is no failure here."""
    if REASON and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REASON:
        terminalreporter.write_line(f"GPU tests were skipped: {REASON}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") is not None and REASON:
            item.add_marker(pytest.mark.skip(reason=REASON))
