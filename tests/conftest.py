"""What holds for every test but those of tests/gpu, which run under a pytest.ini of their own.

Kernels run in Triton's interpreter, on the CPU. It is chosen when triton is first imported, by
whoever is first (transformers is, by way of torch): so here, before any other import.

No card is visible, neither here nor to the clusters that tests start: what they compare with is the
CPU engine, on any machine. NIXL moves pages by sockets, whatever else the machine has.

Threads of torch give their core away while they wait for each other: more tests run than there are
cores.

An interrupt ends what tests start, also where a shell runs all tests in the background: those
inherit that it is ignored.
"""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.dealing import long_first, make_scheduler
from tests.seeds import pytest_runtest_setup as pytest_runtest_setup
from twolane.rpc.secret import new_secret

os.environ["TRITON_INTERPRET"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["UCX_TLS"] = "tcp"
os.environ["OMP_WAIT_POLICY"] = "passive"
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that is drawn or tried slowly says something of the machine, not of the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A test draws the same examples in every run. `--hypothesis-profile fresh` draws others.
settings.register_profile("same", settings.get_profile("busy"), derandomize=True)
settings.register_profile("fresh", settings.get_profile("busy"), max_examples=2000)
settings.load_profile("same")


def _is_of_this_loop(record: logging.LogRecord) -> bool:
    """gRPC has one queue for all event loops of a process, and each test has a loop of its own: of
    what is left for one that is closed, any later loop, and so another test's log, is told."""
    is_left = "PollerCompletionQueue._handle_events" in record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    return not (is_left and isinstance(error, RuntimeError) and "loop is closed" in str(error))


logging.getLogger("asyncio").addFilter(_is_of_this_loop)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests are not garbage: looking for it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return make_scheduler(config, log)


@pytest.fixture(scope="session", autouse=True)
def secret_of_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of all that tests start: they look into workers, too, and leave nothing in a home."""
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text(new_secret())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWOLANE_SECRET_FILE", str(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_news_of_waits() -> Iterator[None]:
    """How long a command waits is the machine's, and what it prints a test's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twolane.cli.waiting._LOOK_S", 3600.0)
        yield
