"""What is remembered of a transfer into this worker when it is over."""

from __future__ import annotations

from dataclasses import dataclass

from kvtransfer.key import Key
from twolane.tombstones import Tombstones


@dataclass(frozen=True, slots=True)
class Ending:
    """`committed` is the generation that succeeded, 0 when none did: then `reason` says why."""

    reason: str
    committed: int = 0


Endings = Tombstones[Key, Ending]  # late ASSIGN, RESERVE and DONE are answered from here
