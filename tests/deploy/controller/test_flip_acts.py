"""What an operator's flip makes of what is desired, and when it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.deploy.controller.inventories import inventory, running, seated
from twolane.deploy.controller.acts import Decided, flip, set_mode
from twolane.deploy.controller.desired import Desired, Mode, Removal
from twolane.deploy.controller.reconcile import Seen, View
from twolane.deploy.controller.sizing import begun
from twolane.deploy.errors import RefusedError

SEATED = seated("prefill-0@", "decode-0@", "decode-1@")
ABLE = frozenset({"prefill", "decode"})


def view(desired: Desired, able: frozenset[str] = ABLE, **seen: Seen) -> View:
    workers = {
        name: replace(its, able=able, rows=3) for name, its in running(desired).workers.items()
    }
    return View(workers={**workers, **{key.replace("_", "-"): its for key, its in seen.items()}})


def sizes(decided: Decided) -> dict[str, int]:
    return {pin.pool: pin.n for pin in decided.desired.pins}


def test_flip_pins_both_pools_at_their_new_sizes() -> None:
    decided = flip(SEATED, inventory(decode=2), view(SEATED), "decode-1")
    assert sizes(decided) == {"decode": 1, "prefill": 2}
    seat = decided.desired.seat("decode-1")
    assert seat is not None
    assert seat.pool == "prefill"
    assert [f"{its.subject}: {its.before} -> {its.after}" for its in decided.changes] == [
        "decode-1: decodes -> prefills at once; its 3 requests run out",
        "pool decode: 2 -> 1, pinned",
        "pool prefill: 1 -> 2, pinned",
    ]


def test_flip_in_a_cluster_that_sizes_itself_pins_nothing() -> None:
    desired = begun(SEATED, inventory())
    decided = flip(desired, inventory(), view(desired), "decode-1")
    assert not decided.desired.pins
    assert {size.pool: size.n for size in decided.desired.sizes} == {"prefill": 2, "decode": 1}
    pinned = flip(desired.pinned("decode", 2), inventory(), view(desired), "decode-1")
    assert sizes(pinned) == {"decode": 1}


@pytest.mark.parametrize(
    ("desired", "seen", "name", "why"),
    [
        (SEATED, view(SEATED), "decode-9", "there is no worker decode-9"),
        (SEATED.removed(Removal(name="decode-1")), view(SEATED), "decode-1", "is to go"),
        (SEATED, view(SEATED, decode_1=Seen()), "decode-1", "is not ready"),
        (SEATED, view(SEATED, frozenset({"decode"})), "decode-1", r"cannot prefill: .*--flips"),
        (SEATED, view(SEATED), "prefill-0", "is the last worker of prefill"),
    ],
)
def test_flip_that_cannot_be_is_refused(desired: Desired, seen: View, name: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        flip(desired, inventory(), seen, name)


def test_worker_with_both_roles_or_of_another_size_is_not_flipped() -> None:
    its = inventory(gpus=1, **{"": 4})
    wide = replace(its, pools=(replace(its.pools[0], n_gpus=2), its.pools[1]))
    with pytest.raises(RefusedError, match="other numbers of GPUs"):
        flip(SEATED, wide, view(SEATED), "decode-1")
    both = replace(its, pools=(replace(its.pools[0], roles=("prefill", "decode")), its.pools[1]))
    with pytest.raises(RefusedError, match="no single pool to flip to"):
        flip(SEATED, both, view(SEATED), "decode-1")


def test_mode_is_one_of_three_and_only_of_a_cluster_that_sizes_itself() -> None:
    paused = set_mode(Desired(), "paused", sizes_itself=True)
    assert paused.desired.mode == Mode.PAUSED
    assert [(its.before, its.after) for its in paused.changes] == [("on", "paused")]
    assert set_mode(paused.desired, "paused", sizes_itself=True).changes == ()
    with pytest.raises(RefusedError, match="on, dry-run, paused"):
        set_mode(Desired(), "asleep", sizes_itself=True)
    with pytest.raises(RefusedError, match="--autoscale"):
        set_mode(Desired(), "paused", sizes_itself=False)
