"""An agent has ended a process, and its host is not heard any more."""

from __future__ import annotations

import pytest

from tests.deploy.agent.test_agent_launcher import Hosts, hosts, launched, spec
from twolane.deploy.errors import NotProvenError

__all__ = ["hosts"]


async def test_a_stop_whose_end_is_not_heard_is_not_proven(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        handle = await launcher.start(spec("a"))
        launcher._links["a"]._hear = lambda message: None  # type: ignore[method-assign]
        with pytest.raises(NotProvenError, match="a does not say whether w has ended"):
            await launcher.stop(handle, 0.5)
