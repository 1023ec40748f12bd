"""The preconditions of an operator's drain commands, as far as the router knows them."""

from __future__ import annotations

from twolane.errors import PreconditionError
from twolane.router.members.member import Member


def check_epoch(member: Member, expect_epoch: int) -> None:
    """Raise `PreconditionError` if the worker is another incarnation than `expect_epoch`; 0:
    any."""
    if expect_epoch not in (0, member.epoch):
        raise PreconditionError(
            f"{member.worker_id} was restarted: its epoch is {member.epoch:016x}, not "
            f"{expect_epoch:016x}",
            metadata={"worker": member.worker_id, "epoch": f"{member.epoch:016x}"},
        )


def check_undo(member: Member, *, undo: bool) -> None:
    """Raise `PreconditionError` if its drain cannot be undone any more."""
    if undo and member.load.drain.is_taken:
        raise PreconditionError(
            f"the ticket of {member.worker_id} was taken: its process is about to be ended",
            metadata=_facts(member),
        )


def check_ticket(member: Member, ticket: int) -> None:
    """Raise `PreconditionError` if the worker has not given that ticket."""
    report = member.load.drain
    if not (report.has_ticket and report.number == ticket):
        raise PreconditionError(
            f"{member.worker_id} has given no ticket {ticket}", metadata=_facts(member)
        )


def _facts(member: Member) -> dict[str, str]:
    return {"worker": member.worker_id, "ticket": str(member.load.drain.number)}
