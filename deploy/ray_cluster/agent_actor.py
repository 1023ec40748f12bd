"""Two actors of each node: the agent, and the one that holds the node's GPUs for it."""

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
    """The arguments of an agent's actor, passed as JSON. Its files stay in the node's home folder:
    the next agent of the same `cluster` and `host_name` finds the processes that run. Its port
    never changes, so that controllers find it again."""

    cluster: str
    host_name: str
    ip: str
    port: int
    gpus: tuple[str, ...] = ()
    secret: str = field(repr=False)
    tls: TlsFiles | None = None  # paths on that node
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
    """An agent that serves on its own event loop as soon as the actor is created. If it dies, Ray
    restarts it; it then listens at the same port, and adopts the running processes."""

    def __init__(self, plan: str) -> None:
        """Raises if the agent cannot listen, or cannot use its state folder."""
        parsed = from_json(AgentPlan, plan)
        # Undo for child processes what Ray sets for its own: one thread each, and the driver's
        # folder first in the path.
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
        """Kill all processes that the agent has started or found. Returns when all are proven dead.
        Raises `NotProvenError`."""
        agent = self._server.agent
        asyncio.run_coroutine_threadsafe(agent.end_all(), self._loop).result()

    def _run(self, plan: AgentPlan) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve(plan))
            except BaseException as error:  # noqa: BLE001  # raised for those who wait for us
                if not self._serving.done():
                    self._serving.set_exception(error)
                    return
                os._exit(1)  # Ray restarts the actor, which adopts the running processes

    async def _serve(self, plan: AgentPlan) -> None:
        server = await _entered(plan)
        try:
            self._server = server
            self._serving.set_result(server.endpoint)
            await server.wait()
        finally:
            await server.__aexit__(None, None, None)


class SeatActor:
    """Holds a node's GPUs. It runs nothing; it keeps them reserved while the agent restarts."""

    def gpus(self) -> list[str]:
        """The GPUs, as in CUDA_VISIBLE_DEVICES."""
        import ray

        return [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids()["GPU"]]


async def _entered(plan: AgentPlan) -> AgentServer:
    """Start the server; its predecessor may still be ending. Raises `ListenError` if the port stays
    in use."""
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
