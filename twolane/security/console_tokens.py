"""Tokens by which a browser shows who opened the console: a browser has no access to the operators'
socket, and often no certificate.

    tlc.<until>.<role>.<name>.<mac>

An operator or viewer gets one from AdminService.OpenConsole, as its own identity, for some hours.
All routers with the same secret of the cluster accept it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from hashlib import sha256

from twolane.errors import UnauthenticatedError
from twolane.security.identity import Identity, Role

PREFIX = "tlc"
HOURS_S = 12 * 3600.0
_ROLES = (Role.OPERATOR, Role.VIEWER)
HOW_TO_GET_ONE = "`twolane console` prints the console's address with a new token"


class ConsoleTokens:
    """`secret` is the cluster's; empty: there is none."""

    def __init__(self, secret: str) -> None:
        known = secret.encode() if secret else secrets.token_bytes(32)
        self._key = sha256(b"twolane console\0" + known).digest()

    def issue(self, caller: Identity, now: float) -> tuple[str, float]:
        """A token for the caller and the Unix time until which it is valid. A process of the
        cluster itself gets an operator's."""
        role = caller.role if caller.role in _ROLES else Role.OPERATOR
        until = int(now + HOURS_S)
        name = base64.urlsafe_b64encode(caller.name.encode()).decode().rstrip("=")
        text = f"{PREFIX}.{until}.{role.value}.{name}"
        return f"{text}.{self._mac(text)}", until

    def identity(self, shown: str, now: float) -> Identity:
        """Raises `UnauthenticatedError`."""
        text, _, mac = shown.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(text).encode()):  # guard: console token
            raise UnauthenticatedError(f"this is no token of this console; {HOW_TO_GET_ONE}")
        try:
            _, until, role, name = text.split(".")
            if now >= int(until):  # guard: old console token
                raise UnauthenticatedError(f"the console's token has expired; {HOW_TO_GET_ONE}")
            padded = name + "=" * (-len(name) % 4)
            return Identity(Role(role), base64.urlsafe_b64decode(padded).decode())
        except (ValueError, binascii.Error):
            raise UnauthenticatedError(f"this is no token of a console; {HOW_TO_GET_ONE}") from None

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), sha256).hexdigest()
