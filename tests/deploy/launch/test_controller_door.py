"""What an operator of a launcher's socket is told of an act that was not done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from twolane.cli.controller import ControllerClient, NotProvenError
from twolane.config import CONTROLLER_SOCKET_NAME
from twolane.deploy import errors
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door


class _Fails:
    """A supervisor that proves nothing."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def fence(self, worker_id: str) -> str:
        raise self._error

    async def say_off(self, host: str) -> str:
        raise self._error


@pytest.mark.parametrize("kind", [errors.NotProvenError, errors.DeposedError])
async def test_what_is_not_proven_is_told_with_its_reason(
    kind: Callable[[str], Exception], tmp_path: Path
) -> None:
    supervisor = cast(Any, _Fails(kind("a: another controller has it")))
    door = ControllerDoor(supervisor, lambda: None, lambda event: None)
    async with open_controller_door(door, tmp_path):
        with ControllerClient(f"unix:{tmp_path / CONTROLLER_SOCKET_NAME}") as client:
            for act in (client.fence, client.say_off):
                with pytest.raises(NotProvenError, match="not proven: a: another controller"):
                    await asyncio.to_thread(act, "decode-0")
