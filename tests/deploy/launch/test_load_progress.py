from __future__ import annotations

import asyncio
from pathlib import Path

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.keeper import Keeper, KeeperConfig
from twolane.deploy.launch.load_progress import LoadingNews
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.specs import ProcessSpec

PREFIX = "2026-11-20 10:00:00,000 I twolane.deploy.process.loading: "
CLUSTER = cluster_with(model_with(model_dir="/m", name="m"), prefill=1, decode=1)


def write(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_only_the_last_whole_line_since_the_last_look_is_news(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    write(log, f"{PREFIX}loaded m: by an earlier incarnation\n")
    news = LoadingNews(log)
    assert news.latest() == ""
    write(log, f"{PREFIX}loading m: 1 of 9\n{PREFIX}loading m: 2 of 9\nother words\n{PREFIX}load")
    assert news.latest() == "loading m: 2 of 9"
    assert news.latest() == ""
    write(log, "ed m: 9\n")
    assert news.latest() == "loaded m: 9"


def test_a_log_that_is_not_there_yet_is_no_news(tmp_path: Path) -> None:
    news = LoadingNews(tmp_path / "w.log")
    assert news.latest() == ""
    write(tmp_path / "w.log", f"{PREFIX}loading m: 1 of 9\n")
    assert news.latest() == "loading m: 1 of 9"


class SlowLauncher:
    """Its first process loads until it has been seen to; what comes then is not needed here."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self.is_seen = asyncio.Event()

    async def start(self, spec: ProcessSpec) -> Handle:
        await asyncio.sleep(0.02)
        write(self._log_dir / f"{spec.name}.log", f"{PREFIX}loading m: 1 of 9\n")
        await self.is_seen.wait()
        return Handle(spec.name, spec.epoch, "h:1", "", 1)


async def test_a_process_that_starts_tells_how_far_it_has_loaded(tmp_path: Path) -> None:
    launcher = SlowLauncher(tmp_path)
    events: list[Event] = []

    def tell(event: Event) -> None:
        events.append(event)
        if event.kind is Kind.LOADING:
            launcher.is_seen.set()

    config = KeeperConfig(loading_poll_s=0.01)
    keeper = Keeper(
        launcher,  # type: ignore[arg-type]  # it only starts here
        tell,
        config,
        is_wanted=lambda name: True,
        proven_dead=lambda epoch: None,
        log_dir=tmp_path,
    )
    async with asyncio.timeout(60):
        await keeper.start(CLUSTER.workers("h:1")[0])
    assert [event.kind for event in events] == [Kind.STARTING, Kind.LOADING, Kind.STARTED]
    assert (events[1].name, events[1].text) == ("prefill-0", "loading m: 1 of 9")
    write(tmp_path / "prefill-0.log", f"{PREFIX}too late\n")
    await asyncio.sleep(0.05)
    assert len(events) == 3
