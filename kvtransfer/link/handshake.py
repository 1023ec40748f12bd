"""The hellos: who both sides are, whether their pages fit, and which transport they use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.link.process_identity import host_identity, start_ticks
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transport import Landing
from twolane.kvtransfer.transport_names import ONE_HOST_ONLY, ONE_KIND_ONLY
from twolane.layout import LayoutError, mismatch, parse_layout
from twolane.v1 import transfer_pb2

PAGE_LANE_ONLY = frozenset({"tcp"})  # both sides must protect its connections alike
TRUSTED_FABRIC_ONLY = frozenset({"nixl"})  # readable on the way: across hosts by `trusted_fabric`
HOST = "host"
_REMEDIES = {
    "page_lane": "both workers need the same page_lane for tcp",
    "trusted_fabric": "nixl sends pages unencrypted between hosts; trusted_fabric: true allows it",
}
HELLO_S = 5.0  # a link without a hello by then is closed


def sender_hello(
    worker_id: str,
    epoch: int,
    fingerprint: str,
    layout: str,
    transports: Sequence[str],
    makes_dtypes: Sequence[str] = (),
    *,
    memory: str = HOST,
    page_lane: PageLane = PageLane.PLAIN,
) -> transfer_pb2.SenderHello:
    """This process's hello. `transports` best first."""
    return transfer_pb2.SenderHello(
        worker_id=worker_id,
        epoch=epoch,
        fingerprint=fingerprint,
        layout=layout,
        transports=transports,
        host=host_identity(),
        pid=os.getpid(),
        pid_start_ticks=start_ticks(os.getpid()),
        makes_dtypes=makes_dtypes,
        memory=memory,
        page_lane=page_lane,
    )


def paging_to(ours: transfer_pb2.SenderHello, theirs: transfer_pb2.ReceiverHello) -> Paging | None:
    """How a row is cut into the receiver's pages; None: as into ours. Raises `LayoutError`."""
    if theirs.layout in ("", ours.layout):
        return None
    source, target = parse_layout(ours.layout), parse_layout(theirs.layout)
    field = mismatch(source, target, ours.makes_dtypes)
    if field:
        raise LayoutError(field, f"{theirs.layout} cannot be made of {ours.layout}")
    return Paging(source.page_tokens, target.page_tokens, target.page_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverIdentity:
    """A receiver's side of the handshake: compares a sender's hello with these."""

    worker_id: str
    epoch: int
    fingerprint: str
    layout: str  # canonical JSON
    host: str  # `host_identity()`
    lease_ms: int
    memory: str = HOST  # where its pages are
    trusted_fabric: bool = False  # the RDMA network between hosts has no other users

    def answer(
        self, hello: transfer_pb2.SenderHello, landings: Mapping[str, Landing]
    ) -> transfer_pb2.ReceiverHello:
        """ReceiverHello with the picked transport, or with the field that makes the pair
        impossible."""
        answer = transfer_pb2.ReceiverHello(
            worker_id=self.worker_id,
            epoch=self.epoch,
            lease_ms=self.lease_ms,
            layout=self.layout,
            takes_last_chunk=True,
        )
        field, message = self._unequal(hello)
        refusals = {name: self._why_not(name, hello, landings) for name in hello.transports}
        transport = next((name for name, why in refusals.items() if not why), "")
        if field:
            answer.refused_field, answer.refused_message = field, message
        elif not transport:
            offered, ours = ", ".join(hello.transports), ", ".join(landings)
            why = next((each for each in _REMEDIES if each in refusals.values()), "transports")
            remedy = _REMEDIES.get(why, "none works between us")
            answer.refused_field = why
            answer.refused_message = f"offered: {offered}; here: {ours}; {remedy}"
        else:
            landing = landings[transport]
            answer.transport = transport
            answer.transport_address = landing.address
            answer.checksums.extend(landing.digests)
            answer.page_lane = landing.lane.name
            answer.page_key = landing.lane.key_for(hello.epoch)
        return answer

    def _unequal(self, hello: transfer_pb2.SenderHello) -> tuple[str, str]:
        if hello.fingerprint != self.fingerprint:
            return "fingerprint", f"{hello.fingerprint} is not {self.fingerprint}"
        try:
            theirs, ours = parse_layout(hello.layout), parse_layout(self.layout)
            field = mismatch(theirs, ours, hello.makes_dtypes)
        except LayoutError as error:
            return f"layout.{error.field}", str(error)
        if field:
            return f"layout.{field}", f"{hello.layout} does not become {self.layout}"
        return "", ""

    def _why_not(
        self, name: str, hello: transfer_pb2.SenderHello, landings: Mapping[str, Landing]
    ) -> str:
        """The field that keeps pages from this sender off that transport; empty: none does."""
        is_near = hello.host == self.host
        is_alike = (hello.memory or HOST) == self.memory
        is_too_far = name in ONE_HOST_ONLY and not is_near
        is_foreign = name in ONE_KIND_ONLY and not is_alike
        if name not in landings or is_too_far or is_foreign:
            return "transports"
        if name in TRUSTED_FABRIC_ONLY and not is_near and not self.trusted_fabric:
            return "trusted_fabric"
        lane = hello.page_lane or PageLane.PLAIN
        if name in PAGE_LANE_ONLY and lane != landings[name].lane.name:
            return "page_lane"
        return ""
