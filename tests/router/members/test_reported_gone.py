"""Whose word counts that a worker's process is gone."""

from __future__ import annotations

from typing import Any

import pytest

from twolane.errors import PermissionDeniedError
from twolane.router.config import MembershipConfig
from twolane.router.doors.worker_door import _host_of_proof
from twolane.router.members.member import MemberState
from twolane.router.members.membership import (
    ForeignEpochError,
    Membership,
    RetiredEpochError,
)
from twolane.security.identity import Identity, Role
from twolane.v1 import cluster_pb2, worker_pb2


def announce(host: str, epoch: int = 1) -> cluster_pb2.AnnounceRequest:
    return cluster_pb2.AnnounceRequest(
        worker=worker_pb2.WorkerAddress(worker_id="w", epoch=epoch, endpoint="w:1"),
        roles=[worker_pb2.ROLE_DECODE],
        model="m",
        host=host,
    )


@pytest.fixture
def members() -> Membership:
    members = Membership(MembershipConfig())
    members.announce(announce("node-b"), 0.0)
    return members


def test_agent_reports_what_its_own_host_has_announced(members: Membership) -> None:
    members.report_gone(1, 1.0, host="node-b")
    member = members.get(1)
    assert member is not None
    assert member.state is MemberState.GONE
    assert members.proofs == {1: 1.0}


def test_agent_of_another_host_is_not_believed(members: Membership) -> None:
    with pytest.raises(ForeignEpochError, match="w on node-b, and the agent of node-a reports"):
        members.report_gone(1, 1.0, host="node-a")
    member = members.get(1)
    assert member is not None
    assert member.state is MemberState.JOINING
    assert not members.proofs


def test_epoch_that_died_while_the_router_was_away_is_reported_by_its_agent() -> None:
    members = Membership(MembershipConfig())
    members.report_gone(1, 1.0, host="node-b")
    assert members.proofs == {1: 1.0}
    with pytest.raises(RetiredEpochError):
        members.announce(announce("node-b"), 2.0)


def test_agents_word_on_an_unknown_epoch_falls_when_another_host_announces_it() -> None:
    members = Membership(MembershipConfig())
    members.report_gone(1, 1.0, host="node-a")
    assert members.announce(announce("node-b"), 2.0) is not None
    assert not members.proofs


def test_launcher_or_controller_is_believed_of_every_host(members: Membership) -> None:
    members.report_gone(1, 1.0)
    assert members.proofs == {1: 1.0}


def test_launcher_or_controller_keeps_an_epoch_dead() -> None:
    members = Membership(MembershipConfig())
    members.report_gone(1, 1.0)
    with pytest.raises(RetiredEpochError):
        members.announce(announce("node-b"), 2.0)


@pytest.mark.parametrize(
    ("caller", "said", "host"),
    [
        (Identity(Role.AGENT, "node-a"), {"host": "node-b", "proof_class": "A"}, "node-a"),
        (Identity(Role.AGENT, "node-a"), {"host": "node-b", "proof_class": "C"}, "node-a"),
        (Identity(Role.CONTROLLER, "c"), {"host": "node-b", "proof_class": "C"}, None),
        (Identity(Role.LOCAL), {"host": "node-b", "proof_class": "A"}, "node-b"),
        (Identity(Role.LOCAL), {"host": "node-b", "proof_class": "C"}, None),
        (Identity(Role.LOCAL), {}, None),
    ],
)
def test_agent_speaks_for_its_own_host_whatever_it_says(
    caller: Identity, said: dict[str, Any], host: str | None
) -> None:
    request = cluster_pb2.ReportGoneRequest(epoch=1, **said)
    assert _host_of_proof(caller, request) == host


@pytest.mark.parametrize("proof_class", ["A", "B", ""])
def test_controller_reports_no_proof_but_that_a_host_is_off(proof_class: str) -> None:
    request = cluster_pb2.ReportGoneRequest(epoch=1, host="node-b", proof_class=proof_class)
    with pytest.raises(PermissionDeniedError, match="a controller may report only class C"):
        _host_of_proof(Identity(Role.CONTROLLER, "c"), request)
