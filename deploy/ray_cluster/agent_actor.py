"""The actor that is a node's agent, and the one that holds the node's GPUs for it."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.server import AgentServer
from twolane.deploy.spec.spec_json import from_json
from twolane.rpc.listen import ListenError
from twolane.security.credentials import Credentials, UnprotectedError
from twolane.security.tls import TlsFiles

_PAUSE_S, _TRIES_S = 0.5, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """What an agent's actor is made with, as JSON. Its files are below the node's home folder,
    and stay: a next one of the same `cluster` and `host_name` finds what it has left running. It is
    always at the same port, so that controllers find it again."""

    cluster: str
    host_name: str
    ip: str
    port: int
    gpus: tuple[str, ...] = ()
    secret: str = field(repr=False)
    tls: TlsFiles | None = None  # on that node
    insecure: bool = False

    def config(self) -> AgentConfig:
        state = Path.home() / ".twolane" / self.cluster / self.host_name
        return AgentConfig(
            state_dir=state,
            log_dir=state / "logs",
            credentials=Credentials(secret=self.secret, tls=self.tls, insecure=self.insecure),
            host_name=self.host_name,
            bind_host=self.ip,
            port=self.port,
            gpus=self.gpus,
        )


class AgentActor:
    """Serves from its making on, on an event loop of its own. Ray makes it again where it dies:
    then it listens at the same port, and adopts what runs."""

    def __init__(self, plan: str) -> None:
        """Raises if it cannot listen, or its state folder cannot be used."""
        parsed = from_json(AgentPlan, plan)
        # for what it starts: Ray's workers have one thread each, and the folder of a driver in
        # front of our packages
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ["PYTHONSAFEPATH"] = "1"
        self._loop = asyncio.new_event_loop()
        self._serving: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, args=(parsed,), daemon=True)
        self._thread.start()
        self._endpoint = self._serving.result()

    def endpoint(self) -> str:
        """host:port"""
        return self._endpoint

    def end_all(self) -> None:
        """Kill all that it has started or found; returns when all are proven dead. Raises
        `NotProvenError`."""
        agent = self._server.agent
        asyncio.run_coroutine_threadsafe(agent.end_all(), self._loop).result()

    def _run(self, plan: AgentPlan) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve(plan))
            except BaseException as error:  # noqa: BLE001  # whoever waits for us gets it
                if not self._serving.done():
                    self._serving.set_exception(error)
                    return
                os._exit(1)  # Ray starts another, which adopts what runs

    async def _serve(self, plan: AgentPlan) -> None:
        server = await _entered(plan)
        try:
            self._server = server
            self._serving.set_result(server.endpoint)
            await server.wait()
        finally:
            await server.__aexit__(None, None, None)


class SeatActor:
    """Holds a node's GPUs. It runs nothing: they stay ours while the agent is made again."""

    def gpus(self) -> list[str]:
        """As CUDA_VISIBLE_DEVICES names them."""
        import ray

        return [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids()["GPU"]]


async def _entered(plan: AgentPlan) -> AgentServer:
    """Raises `ListenError` if the port stays in use: its predecessor may still be ending."""
    clock = asyncio.get_running_loop().time
    end = clock() + _TRIES_S
    while True:
        try:
            return await AgentServer(plan.config()).__aenter__()
        except UnprotectedError:
            raise
        except ListenError as error:
            if clock() > end:
                raise ListenError(f"{error}; give this cluster other --ports") from error
        await asyncio.sleep(_PAUSE_S)
