"""What an operator may do with a rollout, and what the plan says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.deploy.controller.inventories import inventory, seated
from tests.deploy.controller.rollouts import NEW, OLD, STEP, Rolling, cluster, revisions
from twolane.deploy.controller.desired import Desired, Removal
from twolane.deploy.controller.reconcile import Phase
from twolane.deploy.controller.rollout_acts import rollout_status
from twolane.deploy.errors import RefusedError
from twolane.deploy.spec.revision import Fit
from twolane.deploy.spec.spec_json import from_json, to_json


def test_it_does_not_begin_while_workers_leave_or_come_back() -> None:
    facts = cluster(prefill=2, decode=3)
    facts.saved = facts.saved.removed(Removal(name="decode-2"))
    with pytest.raises(RefusedError, match="wait until decode-2 is gone"):
        facts.begin()
    facts.saved = facts.saved.kept("decode-2")
    with pytest.raises(RefusedError, match="wait until decode-2 takes work again"):
        facts.begin()


def test_acts_that_make_no_sense_are_refused() -> None:
    facts = Rolling(inventory(prefill=2, decode=2), seated("prefill-0"))
    with pytest.raises(RefusedError, match="no rollout is under way"):
        facts.step(STEP.STEP_UNDO)
    with pytest.raises(RefusedError, match="between 0 and 1"):
        cluster().begin(canary=1.5)
    facts = cluster()
    facts.begin()
    facts.step(STEP.STEP_UNDO)
    with pytest.raises(RefusedError, match="which is not paused"):
        facts.step(STEP.STEP_PAUSE)
    with pytest.raises(RefusedError, match="paused, resumed or undone"):
        facts.step(STEP.STEP_UNSPECIFIED)


def test_plans_say_what_each_worker_does_and_with_which_revision() -> None:
    facts = cluster()
    said = {(its.subject, its.after) for its in facts.begin().changes}
    assert ("prefill-0", "drain, stop, restart with the new revision") in said
    chance = random.Random(0)
    while revisions(facts.saved) != "prefill oN decode oN":
        facts.look(chance)
        facts.happen(chance)
    facts.workers["decode-1"] = replace(facts.workers["decode-1"], phase=Phase.STARTING)
    undone = {(its.subject, its.after) for its in facts.step(STEP.STEP_UNDO).changes}
    assert undone >= {
        ("prefill-1", "drain, stop, restart with the former revision"),
        ("decode-1", "start cancelled; restarts with the former revision"),
    }
    alone = cluster(1, 1, seats=4)
    said = {(its.subject, its.after) for its in alone.begin(extra=2).changes}
    assert ("decode-0", "stops once its replacement serves") in said


def test_second_worker_for_which_there_is_a_seat_is_said_to_start() -> None:
    facts = cluster(1, 1, seats=4)
    facts.begin(extra=2)

    def waits_for() -> str:
        told = rollout_status(facts.saved, facts.rooms, facts.view())
        assert told is not None
        return told.waits_for

    assert waits_for() == "a second worker of prefill is about to start"
    facts.rooms = inventory(a=2)
    assert waits_for() == (
        "there is no free seat for a second worker of prefill: `twolane rollout undo`"
    )


def test_plan_names_what_was_not_checked() -> None:
    facts = cluster()
    facts.fit = Fit(unchecked="whether each host has /models/new")
    assert facts.begin().changes[-1].subject == "not checked"
    facts = cluster()
    facts.fit = Fit(why_not="there is no directory /models/new")
    with pytest.raises(RefusedError, match="there is no directory"):
        facts.begin()


def test_the_files_that_hosts_had_are_kept_with_it() -> None:
    facts = cluster()
    facts.fit = Fit(fingerprint="3f2a")
    facts.begin()
    saved = from_json(Desired, to_json(facts.saved))
    assert (saved.fingerprint(NEW), saved.fingerprint(OLD)) == ("3f2a", "")
