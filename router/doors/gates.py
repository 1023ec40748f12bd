"""The gates of a router's listeners: which credentials each accepts."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

from twolane.errors import UnauthenticatedError
from twolane.router.config import ServerConfig
from twolane.security.console_tokens import HOW_TO_GET_ONE, PREFIX, ConsoleTokens
from twolane.security.credentials import Protection
from twolane.security.gate import Gate, KeyCheck
from twolane.security.identity import ANONYMOUS, Identity, Role


class Gates:
    """`clients` is the gate of both doors for clients, gRPC and HTTP. The constructor raises
    `UnprotectedError` for a listener that other machines could reach without TLS."""

    def __init__(
        self, config: ServerConfig, keys: KeyCheck | None, console_tokens: ConsoleTokens
    ) -> None:
        gate = config.credentials.gate
        self._config = config
        self.has_keys = keys is not None
        anyone = None if self.has_keys else ANONYMOUS
        self.clients = gate(
            "the clients' door",
            config.host,
            "--host",
            takes_secret=False,
            anonymous=anyone,
            keys=keys,
        )
        self.console = gate(
            "the console",
            config.host,
            "--host",
            takes_secret=False,
            keys=partial(_of_console, console_tokens, keys),
        )
        self.workers = gate(
            "the workers' door", config.bind_host, "--bind-host", advertised=config.advertise_host
        )
        self.metrics = gate(
            "the metrics' page",
            config.host,
            "--host",
            takes_secret=False,
            anonymous=Identity(Role.VIEWER),
        )
        # a socket with mode 0600: every caller is its user
        self.operators = Gate(
            "the operators' door", is_private=True, anonymous=Identity(Role.OPERATOR)
        )

        self.admin_port = gate(
            "the operators' port",
            config.bind_host,
            "--bind-host",
            advertised=config.advertise_host,
        )

    def insecure_listeners(self) -> list[str]:
        """The listeners that other machines can reach without TLS, as text."""
        config = self._config
        listeners = (
            ("the clients' doors", config.host, "--host"),
            ("the workers' door", config.bind_host, "--bind-host"),
        )
        return [
            f"{name} at {host}"
            for name, host, option in listeners
            if config.credentials.protection(host, option) is Protection.INSECURE
        ]

    def refused(self) -> Counter[str]:
        """Refused calls, with names like `unauthenticated.Announce` and `denied.Announce`."""
        total: Counter[str] = Counter()
        ours = (self.clients, self.console, self.workers, self.metrics)
        for each in (*ours, self.operators, self.admin_port):
            total.update(each.refused)
        return total


def _of_console(tokens: ConsoleTokens, keys: KeyCheck | None, shown: str) -> Identity:
    """The caller with that token, or API key of an operator or viewer."""
    if shown.startswith(f"{PREFIX}."):
        return tokens.identity(shown, time.time())
    if keys is None:
        raise UnauthenticatedError(f"this is no token of a console; {HOW_TO_GET_ONE}")
    return keys(shown)
