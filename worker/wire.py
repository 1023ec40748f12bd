"""How a worker reaches its peers: control streams, and the ways that page bytes can travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtransfer.negotiation import HOST
from kvtransfer.sender_driver import Dial, OpenOutlet
from kvtransfer.transports.base import Landing


@dataclass(frozen=True, slots=True)
class Wire:
    """What the composer of a worker brings. Landings are its to close, when the worker is over."""

    dial: Dial  # endpoint -> a fresh stream to that worker's TransferService
    open_outlet: OpenOutlet  # way for page bytes to the receiver that said this hello
    landings: Mapping[str, Landing]  # by transport name; where page bytes arrive
    transports: tuple[str, ...]  # that pages may leave by, best first
    makes_dtypes: tuple[str, ...] = ()  # of pages that outlets make of ours, if they make any
    memory: str = HOST  # where the pages are: some transports need the same kind on both sides
