from __future__ import annotations

import concurrent.futures
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.twolane.conftest import Door
from tests.twolane.scripted import ERRORS
from tests.until import wait_until
from twolane import (
    CancelledError,
    Client,
    DeadlineError,
    InvalidRequestError,
    UnavailableError,
)
from twolane.calls import resuming


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    with Client(door.endpoint) as client:
        yield client


def left(door: Door, request_id: str, within_s: float = 60.0) -> str:
    end = time.monotonic() + within_s
    while request_id not in door.script.ended:
        assert time.monotonic() < end, f"{request_id} still runs"
        time.sleep(0.01)
    return door.script.ended[request_id]


def test_generate_and_stream_block_and_answer(client: Client, door: Door) -> None:
    assert client.connect() is client
    assert client.generate("a b").text == "a b "
    stream = client.stream("c d")
    assert [chunk.text for chunk in stream] == ["c ", "d ", ""]
    assert left(door, stream.request_id) == "finished"
    assert client.stream("e").completion().text == "e "
    assert client.models()[0].name == "tiny"
    assert client.status(["s1"]).submissions[0].submission_id == "s1"
    assert not client.cancel("nobody")


def dependencies() -> set[str]:
    """Distributions that `pip install twolane` brings, those that they need included."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    waiting = list(map(Requirement, project["dependencies"]))
    while waiting:
        needed = waiting.pop()
        name = normal(needed.name)
        if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, requires(name) or ())
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_client_answers_with_its_own_dependencies_alone(door: Door) -> None:
    """In a process where nothing else that is installed can be imported."""
    there = dependencies()
    absent = [
        module
        for module, names in packages_distributions().items()
        if there.isdisjoint(map(normal, names)) and module != "twolane"
    ]
    assert {"numpy", "click", "pydantic"} < set(absent)
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += f"import twolane; client = twolane.Client({door.endpoint!r}).connect()\n"
    code += "print(client.generate('a b').text)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a b \n", "")


@pytest.mark.parametrize("key", ERRORS)
def test_errors_are_those_of_the_async_client(
    client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "FRESH_S", 0.2)  # so long it looks for another router
    with pytest.raises(type(ERRORS[key]), match=ERRORS[key].message):
        client.generate(key)


def test_deadline_and_refusal_are_typed(client: Client) -> None:
    with pytest.raises(DeadlineError):
        client.generate("silent", timeout_s=0.1)
    with Client("127.0.0.1:1") as nobody, pytest.raises(UnavailableError, match="twolane up"):
        nobody.generate("a")


def test_many_threads_share_one_client(client: Client) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: client.generate(f"w{i} v{i}").text, range(200)))
    assert answers == [f"w{i} v{i} " for i in range(200)]


def test_leaving_the_context_cancels(client: Client, door: Door) -> None:
    with client.stream("forever") as stream:
        next(stream)
    assert left(door, stream.request_id) == "left"
    assert list(stream) == []


def test_an_abandoned_stream_cancels(client: Client, door: Door) -> None:
    for chunk in client.stream("forever"):
        if chunk.tokens:
            break
    assert left(door, chunk.request_id) == "left"


def test_cancel_from_another_thread_ends_the_loop(client: Client) -> None:
    stream = client.stream("silent")
    threading.Timer(0.1, stream.cancel).start()
    assert list(stream) == []


def test_closing_the_client_frees_every_waiting_thread(door: Door) -> None:
    others = threading.enumerate()
    client = Client(door.endpoint)
    ids = [f"waits-{n}" for n in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.generate, "silent", request_id=its) for its in ids]
        wait_until(lambda: {*ids} <= door.script.requests.keys())
        client.close()
        client.close()
        for future in waiting:
            with pytest.raises(CancelledError):
                future.result(timeout=60)
    with pytest.raises(InvalidRequestError, match="closed"):
        client.models()
    left_over = [t for t in threading.enumerate() if t not in others]
    assert not [t for t in left_over if t.name == "twolane-client"]


def test_a_program_that_never_closes_its_client_ends_quietly(door: Door) -> None:
    code = (
        "import sys, twolane\n"
        "client = twolane.Client(sys.argv[1])\n"
        "print(client.generate('a b').text)\n"
        "stream = client.stream('forever'); next(stream)\n"
    )
    command = [sys.executable, "-c", code, door.endpoint]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "a b \n", "")
