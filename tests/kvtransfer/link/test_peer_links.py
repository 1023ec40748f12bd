"""One link a peer, and events in the order in which they happened."""

from __future__ import annotations

from twolane.kvtransfer.link.peer_links import PeerLinks


class Told:
    """A core that has one more event each time somebody has asked."""

    def __init__(self) -> None:
        self.batches = [["first", "second"], ["third"]]
        self.n_asked = 0

    def take_outbox(self) -> list[tuple[int, str]]:
        return []

    def take_events(self) -> list[str]:
        self.n_asked += 1
        assert self.n_asked < 10, "it has nothing more to say"
        return self.batches.pop(0) if self.batches else []


def test_events_that_follow_from_an_event_come_after_those_that_it_came_with() -> None:
    heard: list[str] = []

    def on_events(events: list[str]) -> None:
        for event in events:
            heard.append(event)
            links.flush()  # as a role does that acts upon one

    links: PeerLinks[str, str, str] = PeerLinks(Told(), on_events)
    links.flush()
    assert heard == ["first", "second", "third"]
