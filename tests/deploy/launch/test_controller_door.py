"""What an operator of a launcher's socket is told of an act that was not done, and of a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from twolane.cli.controller import ControllerClient, NotProvenError
from twolane.config import CONTROLLER_SOCKET_NAME
from twolane.deploy import errors
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door
from twolane.errors import UnavailableError
from twolane.v1 import agent_pb2_grpc

WITHIN_S = 60.0


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


async def test_a_stop_is_answered_when_all_is_over(tmp_path: Path) -> None:
    asked = asyncio.Event()
    door = ControllerDoor(cast(Any, None), asked.set, lambda event: None)
    with ControllerClient(f"unix:{tmp_path / CONTROLLER_SOCKET_NAME}") as client:
        async with open_controller_door(door, tmp_path):
            stopping = asyncio.create_task(asyncio.to_thread(client.stop, WITHIN_S))
            await asked.wait()
            with pytest.raises(NotProvenError, match=r"still running after 0\.01 s: .+"):
                await asyncio.to_thread(client.stop, 0.01)
            assert not stopping.done()
        await stopping
        with pytest.raises(UnavailableError, match="no launcher listens at unix:"):
            await asyncio.to_thread(client.stop, WITHIN_S)


@pytest.mark.parametrize("kind", [errors.NotProvenError, errors.DeposedError, OSError])
async def test_what_may_still_run_after_a_stop_is_told(
    kind: Callable[[str], Exception], tmp_path: Path
) -> None:
    asked, serves = asyncio.Event(), asyncio.Event()
    door = ControllerDoor(cast(Any, None), asked.set, lambda event: None)
    client = ControllerClient(f"unix:{tmp_path / CONTROLLER_SOCKET_NAME}")

    async def run() -> None:
        async with open_controller_door(door, tmp_path):
            serves.set()
            await asked.wait()
            raise kind("w may still run")

    with client:
        running = asyncio.create_task(run())
        await serves.wait()
        with pytest.raises(NotProvenError, match="not proven: w may still run"):
            await asyncio.to_thread(client.stop, WITHIN_S)
        with pytest.raises(Exception, match="w may still run"):
            await running


class _EndsAmidAStop(agent_pb2_grpc.ControllerServiceServicer):
    def __init__(self, path: Path) -> None:
        self.server = grpc.server(ThreadPoolExecutor(1))
        agent_pb2_grpc.add_ControllerServiceServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{path}")
        self.server.start()

    def StopCluster(self, request: Any, context: Any) -> Any:
        self.server.stop(0)
        context.abort(grpc.StatusCode.UNAVAILABLE, "it ends")


def test_a_launcher_that_ends_without_an_answer_proves_nothing(tmp_path: Path) -> None:
    ends = _EndsAmidAStop(tmp_path / CONTROLLER_SOCKET_NAME)
    with (
        ControllerClient(f"unix:{tmp_path / CONTROLLER_SOCKET_NAME}") as client,
        pytest.raises(NotProvenError, match="ended without a word"),
    ):
        client.stop(WITHIN_S)
    ends.server.stop(0).wait()
