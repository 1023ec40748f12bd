"""The roles that a worker offers to routers, out of those that it is able to take.

    able       {prefill, decode}   built at the start, with their kernels; never changes
    offered    {decode}  --SetRoles{prefill}-->  {prefill}

A change of roles is a change of this offer, at once and as a whole: routers are told, and place no
more rows of a role that is not offered. Its rows that are here run out, and what a router has
assigned before it heard is accepted: no request notices. So a worker whose offer has changed serves
the new role from that moment, and the old one until its rows have ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from twolane.v1 import worker_pb2
from twolane.worker.role import Role, Roles

RoleName = worker_pb2.Role


class OfferedRoles:
    """`n_changes` counts the changes of the offer."""

    def __init__(self, roles: Roles, offered: Iterable[RoleName] = ()) -> None:
        """Empty: all that it is able to take."""
        self._roles = roles
        self.able = tuple(roles.names)
        self.offered = self._sorted(offered) or self.able
        self.n_changes = 0
        assert {*self.offered} <= {*self.able}, "roles that the worker does not have"

    def change(self, wanted: Iterable[RoleName]) -> str:
        """Offer these roles alone. Returns why nothing changes, in a word; empty: it is so now."""
        roles = self._sorted(wanted)
        if not roles or not {*roles} <= {*self.able}:  # guard: able
            return "unable"
        if roles != self.offered:
            self.offered = roles
            self.n_changes += 1
        return ""

    @property
    def leaving(self) -> list[Role]:
        """Roles that are not offered any more, and still have rows."""
        named = zip(
            (worker_pb2.ROLE_DECODE, worker_pb2.ROLE_PREFILL),
            (self._roles.decode, self._roles.prefill),
            strict=True,
        )
        return [
            role
            for name, role in named
            if role is not None and name not in self.offered and role.rows
        ]

    def report(self, load: worker_pb2.LoadReport) -> None:
        load.roles.extend(self.offered)
        load.able.extend(self.able)

    @staticmethod
    def _sorted(roles: Iterable[RoleName]) -> tuple[RoleName, ...]:
        return tuple(sorted({*roles}))
