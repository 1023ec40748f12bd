"""The policy chooses of a shortlist as it would of all workers, and looks at a handful."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from twolane.router.config import AdmissionConfig, MembershipConfig
from twolane.router.dispatch.load_tally import Tally
from twolane.router.dispatch.policy import place, place_decode
from twolane.router.dispatch.roster import Roster
from twolane.router.members.membership import Membership
from twolane.router.members.worker_view import Need
from twolane.router.requests.attempt import Attempt, AttemptState
from twolane.v1 import cluster_pb2, worker_pb2

P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
CONFIG = AdmissionConfig(
    extra_rows=1, max_prefill_backlog_tokens=900, slo_prefill_backlog_tokens=300
)


class Cluster:
    """Members, shares and the roster of them."""

    def __init__(self, config: AdmissionConfig = CONFIG) -> None:
        self.members = Membership(MembershipConfig())
        self.tally = Tally()
        self.roster = Roster(config, self.members, self.tally)
        self.attempts: list[Attempt] = []

    def join(self, epoch: int, roles: Any, **fields: Any) -> None:
        facts: dict[str, Any] = {
            "model": "m", "fingerprint": "f", "n_pages": 100, "page_tokens": 16,
            "max_context_tokens": 2048, "vocab_size": 50, "decode_rows": 2,
        }  # fmt: skip
        address = worker_pb2.WorkerAddress(worker_id=f"w{epoch}", epoch=epoch, endpoint="e")
        announce = cluster_pb2.AnnounceRequest(worker=address, roles=roles, **(facts | fields))
        if self.members.announce(announce, 0.0) is not None:
            self.members.opened(epoch, 0.0)

    def report(self, epoch: int, **fields: Any) -> None:
        used = fields.pop("used", 0)
        pages = worker_pb2.PageCounts(used=used)
        self.members.heard(epoch, worker_pb2.LoadReport(pages=pages, **fields), 0.0)

    def assign(self, prefill: int, decode: int, n_tokens: int) -> None:
        giver = self.members.get(prefill)
        assert giver is not None
        giver.last_given = len(self.attempts) + 1
        attempt = Attempt(
            worker_pb2.AttemptKey(submission_id="r", attempt=1),
            row=1,
            prefill_epoch=prefill,
            decode_epoch=decode,
            n_tokens=n_tokens,
            first_index=0,
            growth_tokens=8,
            page_tokens=16,
            now=0.0,
        )
        self.tally.add(attempt)
        self.attempts.append(attempt)


def random_cluster(rng: random.Random) -> Cluster:
    cluster = Cluster(replace(CONFIG, beside_rows_s=rng.choice([None, 0.01])))
    role_sets = rng.choice([[[P], [D]], [[P], [D], [P, D]], [[P, D]]])
    for epoch in range(1, rng.randrange(2, 20)):
        cluster.join(
            epoch,
            rng.choice(role_sets),
            model=rng.choice("mmmn"),
            fingerprint=rng.choice("ffg"),
            n_pages=rng.choice([4, 50, 100]),
            page_tokens=rng.choice([16, 16, 32]),
            host_identity=rng.choice(["", "A", "A", "B"]),
        )
    return cluster


def change(rng: random.Random, cluster: Cluster) -> None:
    """Something happens to some worker."""
    members = list(cluster.members)
    epoch = rng.choice(members).epoch
    match rng.randrange(8):
        case 0 | 1:
            used, queued = rng.randrange(110), rng.randrange(0, 1000, 100)
            fenced = [9] if rng.random() < 0.1 else []
            done = worker_pb2.WorkDone(prefill_tokens=1000, prefill_s=rng.choice([0.02, 0.1]))
            cluster.report(
                epoch, used=used, prefill_queue_tokens=queued, fence_wanted=fenced, done=done
            )
        case 2 | 3:
            cluster.assign(epoch, rng.choice(members).epoch, rng.choice([5, 20, 600]))
        case 4 if cluster.attempts:
            cluster.tally.through(rng.choice(cluster.attempts))
        case 5 if cluster.attempts:
            attempt = cluster.attempts.pop(rng.randrange(len(cluster.attempts)))
            attempt.life.advance(AttemptState.OVER)
            cluster.tally.remove(attempt)
        case 6 if rng.random() < 0.3:
            (cluster.members.broken if rng.random() < 0.5 else cluster.members.refused)(epoch)
        case 7 if rng.random() < 0.5:
            cluster.roster.holds_slo = partial(bool, rng.random() < 0.5)
        case _:
            cluster.members.opened(epoch, 0.0)


def random_need(rng: random.Random, cluster: Cluster) -> Need:
    epochs = [member.epoch for member in cluster.members]
    n_tokens = rng.choice([5, 60, 300, 900])
    known = {epoch: rng.randrange(n_tokens + 1) for epoch in rng.sample(epochs, len(epochs) // 3)}
    avoid = frozenset(rng.sample(epochs, rng.choice([0, 0, 1, len(epochs) // 2])))
    return Need(n_tokens=n_tokens, growth_tokens=8, cached_tokens=known, avoid=avoid)


@pytest.mark.parametrize("seed", range(120))
def test_choice_of_the_shortlist_is_the_choice_of_all(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    for _ in range(25):
        for _ in range(rng.randrange(4)):
            change(rng, cluster)
        need = random_need(rng, cluster)
        for model in ("m", "n"):
            everyone = cluster.roster.all(model)
            shortlist = cluster.roster.shortlist(need, model)
            assert place(need, shortlist) == place(need, everyone)
            for giver, host in {(view.giver, view.host) for view in everyone}:
                expected = place_decode(need, everyone, giver, host)
                shortlist = cluster.roster.shortlist(need, model, host)
                assert place_decode(need, shortlist, giver, host) == expected


@pytest.mark.parametrize("seed", range(80))
def test_a_place_that_appears_is_always_news(seed: int) -> None:
    """What waits is tried again only after news: without any, there must still be no place."""
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    n_without = 0
    for _ in range(20):
        need = random_need(rng, cluster)
        is_stuck = place(need, cluster.roster.shortlist(need, "m")) is None
        cluster.roster.has_news_for(need, "m")
        while is_stuck:
            change(rng, cluster)
            if cluster.roster.has_news_for(need, "m"):
                break
            n_without += 1
            assert place(need, cluster.roster.all("m")) is None
            if n_without > 300:
                return


def test_row_that_ends_is_news_even_if_no_page_is_free_by_it() -> None:
    cluster = Cluster()
    cluster.join(1, [P])
    cluster.join(2, [D], decode_rows=0)
    cluster.report(2, used=50)
    cluster.assign(1, 2, 20)
    need = Need(n_tokens=20, growth_tokens=8)
    assert place(need, cluster.roster.shortlist(need, "m")) is None
    cluster.roster.has_news_for(need, "m")
    (attempt,) = cluster.attempts
    cluster.tally.through(attempt)
    cluster.roster.has_news_for(need, "m")
    cluster.tally.remove(attempt)
    assert cluster.roster.has_news_for(need, "m")
    assert place(need, cluster.roster.shortlist(need, "m")) is not None


def test_news_that_nobody_asks_for_do_not_pile_up() -> None:
    """Only those who wait ask, and another model's requests may wait for ever."""
    cluster = Cluster()
    cluster.join(1, [P])
    cluster.join(2, [D])
    for n in range(1_000):
        cluster.report(1, prefill_queue_tokens=n % 2)
        cluster.report(2, used=n % 2)
        cluster.roster.refresh()
    need = Need(n_tokens=1_000, growth_tokens=1_000)  # fits nowhere: all news are looked at
    cluster.roster.has_news_for(need, "m")
    before = cluster.roster.n_looks
    for n in range(1_000):
        cluster.report(2, used=n % 2)
        cluster.roster.refresh()
    n_refreshed = cluster.roster.n_looks - before
    assert not cluster.roster.has_news_for(need, "m")
    assert cluster.roster.n_looks - before - n_refreshed <= 2


def big_cluster(n_workers: int) -> Cluster:
    cluster = Cluster()
    for epoch in range(1, n_workers + 1):
        cluster.join(epoch, [D if epoch % 2 else P], decode_rows=9)
    cluster.roster.refresh()
    return cluster


@pytest.mark.parametrize("is_full", [False, True])
def test_work_of_a_placement_does_not_grow_with_the_cluster(is_full: bool) -> None:
    looks = {}
    for n_workers in (10, 100, 1_000):
        cluster = big_cluster(n_workers)
        for epoch in range(1, n_workers + 1):
            cluster.report(epoch, used=100 if is_full else epoch % 40)
        cluster.roster.refresh()
        before = cluster.roster.n_looks
        for _ in range(20):
            need = Need(n_tokens=40, growth_tokens=8)
            placement = place(need, cluster.roster.shortlist(need, "m"))
            assert (placement is None) == is_full
            if placement is not None:
                cluster.assign(placement.prefill.epoch, placement.decode.epoch, 40)
        looks[n_workers] = cluster.roster.n_looks - before
    assert looks[10] == looks[100] == looks[1_000] <= 20 * 6


def test_report_while_somebody_waits_is_one_look_and_no_search() -> None:
    cluster = big_cluster(1_000)
    for epoch in range(1, 1_001):
        cluster.report(epoch, used=100)
    need = Need(n_tokens=40, growth_tokens=8)
    cluster.roster.has_news_for(need, "m")
    before = cluster.roster.n_looks
    for epoch in range(1, 1_001):
        cluster.report(epoch, used=100)  # nothing has changed
        assert not cluster.roster.has_news_for(need, "m")
    assert cluster.roster.n_looks == before
    for epoch in range(1, 1_001, 2):
        cluster.report(epoch, used=99)  # a page is free: not enough
        assert not cluster.roster.has_news_for(need, "m")
    assert cluster.roster.n_looks <= before + 2 * 500
    cluster.report(501, used=90)
    assert cluster.roster.has_news_for(need, "m")
    assert not cluster.roster.has_news_for(need, "m"), "told once"


def test_rows_of_other_routers_count_and_ours_since_the_report_on_top_of_them() -> None:
    cluster = Cluster()
    cluster.join(1, [P])
    cluster.join(2, [D], decode_rows=9)

    def decode() -> tuple[int, int]:
        view = cluster.roster.view(2)
        assert view is not None
        return view.rows, view.occupied_pages

    cluster.assign(1, 2, 24)  # two pages, with the answer's first
    assert decode() == (1, 2)
    cluster.report(2, rows=3, expected_rows=2, used=20, expected_pages=7)
    assert decode() == (5, 20), "ours is among them; what waits for pages holds none"
    cluster.assign(1, 2, 24)
    assert decode() == (6, 22)
    cluster.report(2, rows=1, used=4)
    assert decode() == (2, 4), "ours are counted though the report came before they arrived"


def test_prompts_beside_rows_are_as_long_as_the_time_that_the_model_takes_for_them() -> None:
    cluster = Cluster(replace(CONFIG, beside_rows_s=0.01))
    cluster.join(1, [P])
    cluster.join(2, [P, D])

    def beside(used: int) -> list[int | None]:
        cluster.report(2, used=used)
        return [view.beside_tokens for view in cluster.roster.all("m")]

    assert beside(used=1) == [None, 0], "nothing was measured yet"
    cluster.report(1, done=worker_pb2.WorkDone(prefill_tokens=100_000, prefill_s=1.99))
    assert cluster.roster.all("m")
    assert beside(used=2) == [None, 502]


def test_the_more_rows_there_are_the_shorter_are_prompts_beside_them() -> None:
    """A prompt of 5 ms costs four rows 20 ms."""
    cluster = Cluster(replace(CONFIG, beside_rows_s=0.02))
    cluster.join(1, [P])
    cluster.join(2, [P, D], decode_rows=8)
    cluster.report(1, done=worker_pb2.WorkDone(prefill_tokens=10_000, prefill_s=1.0))
    assert cluster.roster.all("m")
    found = []
    for rows in (0, 1, 4):
        cluster.report(2, rows=rows)
        found += [view.beside_tokens for view in cluster.roster.all("m") if view.decodes]
    assert found == [200, 200, 50]


def test_a_prompt_finds_the_worker_whose_few_rows_it_may_disturb() -> None:
    """The first one, by what waits there, has too many rows."""
    cluster = Cluster(replace(CONFIG, beside_rows_s=0.02))
    cluster.join(1, [P])
    cluster.report(
        1, prefill_queue_tokens=800, done=worker_pb2.WorkDone(prefill_tokens=10_000, prefill_s=1.0)
    )
    assert cluster.roster.all("m")
    for epoch, rows, waiting, used in ((2, 5, 0, 0), (3, 1, 10, 20)):
        cluster.join(epoch, [P, D], decode_rows=8)
        cluster.report(epoch, rows=rows, prefill_queue_tokens=waiting, used=used)
    need = Need(n_tokens=100, growth_tokens=8)
    placement = place(need, cluster.roster.shortlist(need, "m"))
    assert placement == place(need, cluster.roster.all("m"))
    assert placement is not None
    assert placement.prefill.epoch == placement.decode.epoch == 3


def test_the_pace_of_one_revision_says_nothing_of_another() -> None:
    cluster = Cluster(replace(CONFIG, beside_rows_s=0.01))
    cluster.join(1, [P], fingerprint="old")
    cluster.join(2, [P, D], fingerprint="old")
    cluster.join(3, [P, D], fingerprint="new")
    cluster.report(1, done=worker_pb2.WorkDone(prefill_tokens=100_000, prefill_s=1.99))
    assert cluster.roster.all("m")
    cluster.report(2, used=1)
    cluster.report(3, used=1)
    assert [view.beside_tokens for view in cluster.roster.all("m")] == [None, 502, 0]


def test_the_pace_of_a_revision_is_forgotten_with_its_last_worker() -> None:
    cluster = Cluster(replace(CONFIG, beside_rows_s=0.01))
    cluster.join(1, [P], fingerprint="old")
    cluster.report(1, done=worker_pb2.WorkDone(prefill_tokens=100_000, prefill_s=1.99))
    assert cluster.roster.all("m")
    cluster.members.refused(1)
    assert not cluster.roster.all("m")
    cluster.join(2, [P, D], fingerprint="old")
    assert [view.beside_tokens for view in cluster.roster.all("m")] == [0]


def test_prompts_of_other_routers_count_and_ours_since_the_report_on_top_of_them() -> None:
    cluster = Cluster()
    cluster.join(1, [P])
    cluster.join(2, [D], decode_rows=9)
    cluster.report(1, prefill_queue_tokens=400)
    assert [view.backlog_tokens for view in cluster.roster.all("m") if view.prefills] == [400]
    cluster.assign(1, 2, 600)
    assert [view.backlog_tokens for view in cluster.roster.all("m") if view.prefills] == [1_000]


@pytest.mark.parametrize("seed", range(20))
def test_without_an_slo_the_tokens_at_a_worker_are_the_only_bound(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    for _ in range(40):
        change(rng, cluster)
        cluster.roster.holds_slo = bool
        need = random_need(rng, cluster)
        for view in cluster.roster.all("m"):
            has_room = view.backlog_tokens < CONFIG.max_prefill_backlog_tokens
            assert view.can_prefill(need) is (view.holds(need.n_tokens) and has_room)
            assert view.backlog_rank == (not has_room, view.backlog_tokens)


@pytest.mark.parametrize(
    ("own", "others", "has_place"),
    [
        ([4_000, 4_191], 0, True),
        ([4_000, 4_192], 0, False),
        ([20_000], 0, True),  # one long prompt: the next one is to be there
        ([], 32_767, True),  # routers that do not know the SLO starve none that do
        ([], 32_768, False),
    ],
)
def test_an_slo_bounds_what_a_router_has_at_a_worker_at_once_without_any_report(
    own: list[int], others: int, has_place: bool
) -> None:
    cluster = Cluster(AdmissionConfig())
    cluster.join(1, [P], n_pages=3_000)
    cluster.join(2, [D], n_pages=3_000, decode_rows=9)
    cluster.report(1, prefill_queue=9, prefill_queue_tokens=others)
    for n_tokens in own:
        cluster.assign(1, 2, n_tokens)
    need = Need(n_tokens=100, growth_tokens=8)
    for holds_slo in (True, False, True):
        cluster.roster.holds_slo = partial(bool, holds_slo)
        assert cluster.roster.has_news_for(need, "m") or holds_slo or has_place or others
        found = place(need, cluster.roster.shortlist(need, "m"))
        assert (found is not None) is (has_place if holds_slo else others < 32_768)


def test_routers_prefer_different_ones_of_equal_workers() -> None:
    chosen = set()
    for salt in ("", "router-1", "router-2", "router-3", "router-4"):
        cluster = Cluster()
        cluster.roster = Roster(CONFIG, cluster.members, cluster.tally, salt)
        for epoch in range(1, 9):
            cluster.join(epoch, [P] if epoch % 2 else [D])
        need = Need(n_tokens=20, growth_tokens=8)
        placement = place(need, cluster.roster.shortlist(need, "m"))
        assert placement is not None
        assert placement == place(need, cluster.roster.all("m"))
        chosen.add(placement.decode.epoch)
    assert len(chosen) > 1
