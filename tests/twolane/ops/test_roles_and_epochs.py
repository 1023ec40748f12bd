"""Who may give which command, and to which incarnation of a worker: for every command."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.test_golden_of_others import command_of
from tests.twolane.ops.test_golden_output import COMMANDS, EXITS
from tests.twolane.scripted import EPOCH, ScriptedDoor
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.cli.examples import leaves
from twolane.security.access import GRPC_ROLES
from twolane.security.identity import Role

COMMAND_OF = {name: command_of(line) for name, line in COMMANDS.items()}


def has_option(words: str, option: str) -> bool:
    return any(option in parameter.opts for parameter in leaves(app)[words].params)


def run(line: str, endpoint: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--endpoint", endpoint])


# Roles

# Looks that are for operators alone: a log may quote what users have sent.
LOOKS_OF_OPERATORS = {"logs"}


class ForViewers(grpc.aio.ServerInterceptor):
    """Refuses what a viewer may not call, as the gate does."""

    async def intercept_service(
        self, continuation: Callable[..., Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if Role.VIEWER in GRPC_ROLES[details.method]:
            return handler
        name = details.method.rpartition("/")[2]

        async def refuse(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            why = f"viewer/bob may not call {name}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)

        return grpc.unary_unary_rpc_method_handler(
            refuse, handler.request_deserializer, handler.response_serializer
        )


@pytest.fixture(scope="module")
def viewers_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """unix:PATH of the operators' door, as a viewer finds it."""
    endpoint = f"unix:{tmp_path_factory.mktemp('viewers') / 'admin.sock'}"
    loop = asyncio.new_event_loop()

    async def start() -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[ForViewers()])
        ScriptedDoor().register(server)
        server.add_insecure_port(endpoint)
        await server.start()
        return server

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    yield endpoint
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_act_are_refused_to_viewers_and_looks_are_not(
    name: str, viewers_door: str
) -> None:
    """A command acts if it takes a reason for the audit."""
    words = COMMAND_OF[name]
    is_operators = has_option(words, "--reason") or words in LOOKS_OF_OPERATORS
    done = run(COMMANDS[name], viewers_door)
    assert done.exit_code == (2 if is_operators else EXITS.get(name, 0)), done.output
    assert ("Error: viewer/bob may not call" in done.output) is is_operators


def test_viewers_may_collect_what_they_may_see(viewers_door: str, tmp_path: Path) -> None:
    done = run(f"bundle {tmp_path}/b.tar.gz --json", viewers_door)
    assert (done.exit_code, json.loads(done.stdout)["missing"]) == (0, {})


def test_every_command_at_the_operators_door_is_tested_with_a_role() -> None:
    doors = {
        words
        for words, command in leaves(app).items()
        for parameter in command.params
        if "--endpoint" in parameter.opts and parameter.metavar == "HOST:PORT|unix:PATH"
    }
    assert doors - {*COMMAND_OF.values()} == {"bundle", "down"}, "of which down is the launcher's"


# Epochs

WITH_EPOCH = [words for words in leaves(app) if has_option(words, "--expect-epoch")]


def test_commands_to_one_worker_name_its_incarnation() -> None:
    """Those whose act has an epoch in proto/: tests/router/doors/test_operators_acts.py."""
    assert {*WITH_EPOCH} == {"drain", "fence", "kill", "flip"}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The acts that were called for, with their requests."""
    found: list[tuple[str, Any]] = []
    call = AdminClient.call

    def spied(self: AdminClient, method: str, request: Any, **how: Any) -> Any:
        found.append((method, request))
        return call(self, method, request, **how)

    monkeypatch.setattr(AdminClient, "call", spied)
    return found


def worker_line(words: str) -> str:
    return f"{words} decode-0" + " --yes" * has_option(words, "--yes")


@pytest.mark.parametrize("words", WITH_EPOCH)
@pytest.mark.parametrize("epoch", [f"{EPOCH:016x}", f"{EPOCH:016x}"[:8], str(EPOCH)])
def test_the_act_goes_to_that_incarnation_alone(
    words: str, epoch: str, door: Door, called: list[tuple[str, Any]]
) -> None:
    done = run(f"{worker_line(words)} --expect-epoch {epoch}", door.admin)
    assert done.exit_code == 0, done.output
    assert {request.expect_epoch for _, request in called} == {EPOCH}


@pytest.mark.parametrize("words", WITH_EPOCH)
def test_another_incarnation_is_left_alone(
    words: str, door: Door, called: list[tuple[str, Any]]
) -> None:
    done = run(f"{worker_line(words)} --expect-epoch 00000000deadbeef", door.admin)
    assert done.exit_code == 2
    assert "decode-0 was restarted: its epoch is 8000000000000005" in done.output
    assert called == []
