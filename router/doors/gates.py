"""The gates of a router's listeners: what callers of each may show."""

from __future__ import annotations

from collections import Counter

from twolane.router.config import ServerConfig
from twolane.security.credentials import Protection
from twolane.security.gate import Gate, KeyCheck
from twolane.security.identity import ANONYMOUS, Identity, Role


class Gates:
    """`clients` is the gate of both doors for clients, gRPC and HTTP. Making them raises
    `UnprotectedError` for a listener that other machines would reach without TLS."""

    def __init__(self, config: ServerConfig, keys: KeyCheck | None) -> None:
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
        # a socket with rights 0600: who comes in is its user
        self.operators = Gate(
            "the operators' door", is_private=True, anonymous=Identity(Role.OPERATOR)
        )

    def insecure_listeners(self) -> list[str]:
        """Those that other machines reach without TLS, in words."""
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
        """Calls, as `unauthenticated.Announce` and `denied.Announce`."""
        total: Counter[str] = Counter()
        for each in (self.clients, self.workers, self.metrics, self.operators):
            total.update(each.refused)
        return total
