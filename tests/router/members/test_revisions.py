"""Which of two revisions a request goes to."""

from __future__ import annotations

import pytest

from twolane.router.members.revisions import Revisions
from twolane.router.members.worker_view import WorkerView
from twolane.v1 import cluster_pb2


def worker(name: str, fingerprint: str) -> WorkerView:
    return WorkerView(
        epoch=hash(name), worker_id=name, fingerprint=fingerprint, n_pages=9, page_tokens=16,
        prefills=name.startswith("p"), decodes=name.startswith("d"),
    )  # fmt: skip


OLD = [worker("p0", "a"), worker("d0", "a")]
NEW = [worker("p1", "b"), worker("d1", "b")]


def with_canary(share: float) -> Revisions:
    revisions = Revisions()
    revisions.tell(cluster_pb2.RolloutStatus(canary_share=share, settled=["a"]))
    return revisions


def test_without_a_canary_all_workers_are_there_for_a_new_request() -> None:
    assert Revisions().groups("s", "", OLD + NEW) == [OLD + NEW]


def test_answer_that_has_begun_stays_with_its_revision_while_a_pair_has_it() -> None:
    revisions = Revisions()
    assert revisions.groups("s", "b", OLD + NEW) == [NEW]
    assert revisions.groups("s", "a", OLD + NEW) == [OLD]
    assert revisions.groups("s", "a", OLD[:1] + NEW) == [OLD[:1] + NEW], "no pair has it"


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_canary_has_its_share_of_new_requests_and_they_may_go_elsewhere(share: float) -> None:
    revisions = with_canary(share)
    groups = [revisions.groups(f"s{n}", "", OLD + NEW) for n in range(2000)]
    n_tried = sum(each == [NEW, OLD] for each in groups)
    assert all(each in ([NEW, OLD], [OLD]) for each in groups)
    assert abs(n_tried / 2000 - share) < 0.03
    assert revisions.groups("s1", "", OLD + NEW) == groups[1], "a repeated draw is the same"


def test_new_revision_serves_all_where_no_pair_has_the_former_one() -> None:
    assert with_canary(0.05).groups("s", "", OLD[1:] + NEW) == [OLD[1:] + NEW]


def test_what_a_controller_says_again_is_no_news() -> None:
    revisions = with_canary(0.05)
    number = revisions.number
    revisions.tell(cluster_pb2.RolloutStatus(canary_share=0.05, settled=["a"], state="canary"))
    assert revisions.number == number
    revisions.tell(cluster_pb2.RolloutStatus())
    assert revisions.number == number + 1
    assert revisions.groups("s", "", OLD + NEW) == [OLD + NEW]
