"""Thousands of schedules of faults: no page is read that is not its row's, none is ever lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kvtransfer.chaos import Chaos
from tests.kvtransfer.world import World
from twolane.kvtransfer.testing.memory import Faults

N_SCHEDULES = 10_000
N_SHARES = 6
SHARES = [0, *(pytest.param(share, marks=pytest.mark.soak) for share in range(1, N_SHARES))]

# Each of these must have happened in the seeded schedules, or the test proves less than it says.
MUST_HAPPEN = [
    "abandoned", "cancel", "claim refused duplicate", "claim refused epoch",
    "claim refused generation", "committed", "cut", "data corrupt", "data drop", "data duplicate",
    "dead: corrupt", "dead: judged", "dead: lease", "dead: mismatch", "done by datagram",
    "dropped duplicate",
    "dropped epoch", "dropped generation", "dropped malformed", "dropped state",
    "failed: cancelled", "failed: lease", "failed: mismatch", "failed: too_large", "finish",
    "given up when landed", "joined", "judged dead", "judged landed", "kill decode",
    "kill prefill", "landed",
    "message corrupt", "message drop", "message duplicate", "message late", "pages asserted",
    "released", "restart", "retarget", "skipped pages", "stop", "unplaced",
]  # fmt: skip


def drawn(seed: int) -> Chaos:
    """Some faults in some schedules: all of them at once would let nothing through."""
    rng = random.Random(seed)

    def sometimes(most: float) -> float:
        return rng.random() * most if rng.random() < 0.6 else 0.0

    return Chaos(
        seed=seed,
        sender_writes=rng.random() < 0.5,
        n_requests=rng.randint(1, 5),
        drop=sometimes(0.2),
        duplicate=sometimes(0.2),
        late=sometimes(0.1),
        corrupt=sometimes(0.1),
        data=Faults(
            delay_s=(0.0, rng.choice([0.001, 0.02, 0.2])),
            drop=sometimes(0.1),
            duplicate=sometimes(0.2),
            corrupt=sometimes(0.1),
        ),
        blows=rng.choice([0, 1, 1, 2, 3]),
        cancels=rng.randrange(2),
        retargets=rng.randrange(2),
        finishes=rng.randrange(5) // 4,
    )


def play(chaos: Chaos) -> Counter[str]:
    world = World(chaos)
    try:
        world.run()
    except BaseException as error:
        error.add_note(f"reproduce with World({chaos!r}).run()")
        raise
    return world.outcome


@pytest.mark.timeout(600)  # 7 s on an idle core
@pytest.mark.parametrize("share", SHARES)
def test_every_seeded_schedule_ends_clean_and_every_fault_occurs(share: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(share, N_SCHEDULES, N_SHARES):
        happened += play(drawn(seed))
    n_schedules = len(range(share, N_SCHEDULES, N_SHARES))
    print(f"\n{n_schedules} schedules (share {share + 1} of {N_SHARES})")
    for what, n in sorted(happened.items()):
        print(f"  {n:9,} {what}")
    missing = [what for what in MUST_HAPPEN if not happened[what]]
    assert not missing, f"never happened: {missing}"


chance = st.floats(0.0, 0.3)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(
    st.builds(
        Chaos,
        seed=st.integers(0, 2**32),
        sender_writes=st.booleans(),
        n_requests=st.integers(1, 6),
        drop=chance,
        duplicate=chance,
        late=chance,
        corrupt=chance,
        data=st.builds(
            Faults,
            delay_s=st.sampled_from([(0.0, 0.001), (0.0, 0.05), (0.01, 0.3)]),
            drop=chance,
            duplicate=chance,
            corrupt=chance,
        ),
        blows=st.integers(0, 4),
        cancels=st.integers(0, 3),
        retargets=st.integers(0, 3),
        finishes=st.integers(0, 2),
    )
)
def test_any_schedule_that_hypothesis_finds_ends_clean(chaos: Chaos) -> None:
    play(chaos)
