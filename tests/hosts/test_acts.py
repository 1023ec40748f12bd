"""Acts of operators under load on two hosts: each does what it says, and no answer is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts.fake_hosts import Network
from tests.hosts.ray_hosts import wait_until
from tests.hosts.test_first_hour import Terminal

pytestmark = pytest.mark.timeout(900)


@contextmanager
def loaded(network: Network, log_dir: Path) -> Iterator[Terminal]:
    """A prefill worker and two decode workers on hosts of three seats each. Every answer that was
    begun within the block is whole."""
    terminal = Terminal(network, log_dir)
    wait_until(lambda: len(terminal.places()) == 3)
    log = terminal.start_load()
    yield terminal
    n_answers = log.read_text().count("\n")
    wait_until(lambda: log.read_text().count("\n") > n_answers + 1)  # it still is served
    (terminal.a.root / "tmp/enough").touch()
    wait_until(lambda: "no error" in log.read_text())


def epochs(terminal: Terminal) -> dict[str, int]:
    return {its.worker_id: its.epoch for its in terminal.cluster.status().workers if its.is_here}


def audited(terminal: Terminal) -> dict[str, str]:
    """The reasons of acts."""
    events = terminal.json("events --audit")["events"]
    return {its["audit"]["what"]: its["audit"].get("reason", "") for its in events}


def starts(terminal: Terminal) -> list[str]:
    return [event["name"] for event in terminal.cluster.events() if event["kind"] == "started"]


def kills(terminal: Terminal) -> None:
    """A killed worker is proven dead, and does not come back."""
    assert "is killed, not started again" in terminal.step("kill decode-1 --dry-run")
    assert "decode-1" in terminal.places()
    n_starts = len(starts(terminal))
    told = terminal.step("kill decode-1 --yes --reason smoke")
    assert "(proof of class A)" in told
    wait_until(lambda: "decode-1" not in terminal.places())
    terminal.step("cordon b --yes")  # the controller has gone on, and starts nothing
    terminal.step("uncordon b --yes")
    (pool,) = (its for its in terminal.json("status")["pools"] if its["pool"] == "decode")
    assert (pool["workers"], pool["names"]) == (1, ["decode-0"])
    assert starts(terminal)[n_starts:] == []
    terminal.step("scale decode=2 --yes --wait")  # until an operator wants one more
    assert audited(terminal)["kill"] == "smoke"


def fences(terminal: Terminal) -> None:
    """A fenced worker is proven dead, and comes back as another incarnation."""
    before = epochs(terminal)["decode-0"]
    assert "(proof of class A)" in terminal.step("fence decode-0 --yes --reason hangs")
    wait_until(lambda: epochs(terminal).get("decode-0", before) != before)
    wait_until(lambda: "decode-0" in terminal.places())
    assert audited(terminal)["fence"] == "hangs"


def scales(terminal: Terminal) -> None:
    """Several pools in one act, checked against the seats as one; a pool is pinned until auto."""
    there = set(terminal.places())
    terminal.step("scale prefill=4 decode=4 --yes", code=2)  # of six seats
    assert set(terminal.places()) == there, "all of it or nothing"
    terminal.step("scale prefill=2 decode=3 --yes --wait --for 1h")
    assert sum(name.startswith("decode") for name in terminal.places()) == 3
    assert sum(name.startswith("prefill") for name in terminal.places()) == 2
    pinned = {its["pool"]: its.get("pinned", False) for its in terminal.json("status")["pools"]}
    assert pinned == {"prefill": True, "decode": True}
    terminal.step("scale prefill=auto decode=auto --yes --wait")
    wait_until(lambda: len(terminal.places()) == 3)


def cordons(terminal: Terminal) -> None:
    """No worker starts on a host that is cordoned; those that run there go on."""
    there = terminal.places()
    terminal.step("cordon b --yes")
    before = epochs(terminal)
    terminal.step("scale decode=4 --yes", code=2)  # host a alone has no room for that
    assert terminal.places() == there
    assert epochs(terminal) == before
    terminal.step("uncordon b --yes")
    terminal.step("scale decode=4 --yes --wait")
    terminal.step("scale decode=auto --yes --wait")
    wait_until(lambda: len(terminal.places()) == 3)


def drains_a_host(terminal: Terminal) -> None:
    """Its workers end on their tickets, others have started elsewhere, and it stays empty."""
    host = terminal.places()["decode-0"]
    assert f"{host} is safe" in terminal.step(f"drain-node {host} --yes --hand-over")
    wait_until(lambda: len(terminal.places()) == 3)
    assert host not in terminal.places().values()
    terminal.step(f"uncordon {host} --yes")


@pytest.mark.parametrize(
    "act",
    [
        kills,
        *(
            pytest.param(act, marks=pytest.mark.soak)
            for act in (fences, scales, cordons, drains_a_host)
        ),
    ],
    ids=lambda act: act.__name__,
)
def test_an_act_under_load_does_what_it_says_and_loses_no_answer(
    act: object, network: Network, tmp_path: Path
) -> None:
    assert callable(act)
    with loaded(network, tmp_path) as terminal:
        act(terminal)
