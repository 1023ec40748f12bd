"""Status queries of operators and viewers: this router's answer merged with the other routers'.

All other routers are called at once, with a timeout of two seconds; those that do not answer are
named.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from twolane.router.doors.admin.own import OwnLooks
from twolane.router.doors.admin.pages import PagesOfWorkers
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.operators.request_looks import page_size, page_token, sort_key
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import Handler, unary, unary_stream
from twolane.v1 import admin_pb2, cluster_pb2

LookT = TypeVar("LookT", bound=Message)
WATCH_S = 1.0  # how late an event of another router may be shown
OVERLAP_S = 10.0  # the greatest difference of routers' clocks
MOST_REMEMBERED = 4_000  # ids of events already sent
MOST_OTHERS = 20
SAME_S = 5.0  # within this time, the same change as told by several routers is one event


class Looks:
    """`look` returns the router's status, its doors' part included; `peers` calls the other
    routers."""

    def __init__(
        self,
        router: Router,
        look: Callable[[bool], cluster_pb2.GetClusterStatusResponse],
        peers: PeerCalls,
        own: OwnLooks,
        pages: PagesOfWorkers,
    ) -> None:
        self._router = router
        self._look = look
        self._peers = peers
        self._own = own
        self._pages = pages

    def methods(self) -> Mapping[str, Handler]:
        return {
            "GetClusterStatus": unary(cluster_pb2.GetClusterStatusRequest, self._get_status),
            "ListRequests": unary(admin_pb2.ListRequestsRequest, self._list_requests),
            "GetRequest": unary(admin_pb2.GetRequestRequest, self._get_request),
            "GetPages": unary(admin_pb2.GetPagesRequest, self._get_pages),
            "ListEvents": unary(admin_pb2.ListEventsRequest, self._list_events),
            "WatchEvents": unary_stream(admin_pb2.WatchEventsRequest, self._watch_events),
        }

    async def _get_status(
        self, request: cluster_pb2.GetClusterStatusRequest, context: Context
    ) -> cluster_pb2.GetClusterStatusResponse:
        return await self.status(with_requests=not request.without_requests)

    async def status(self, *, with_requests: bool) -> cluster_pb2.GetClusterStatusResponse:
        """The status of the cluster."""
        own = self._look(with_requests)
        return await self._peers.whole_status(own, without_requests=not with_requests)

    async def _list_requests(
        self, request: admin_pb2.ListRequestsRequest, context: Context
    ) -> admin_pb2.ListRequestsResponse:
        return await self.requests(request)

    async def requests(
        self, request: admin_pb2.ListRequestsRequest
    ) -> admin_pb2.ListRequestsResponse:
        """One page of all routers' requests. Raises `InvalidParameterError`."""
        whole = self._router.operations.requests.page(request)
        parts, unreached = await self._ask("ListRequests", request, admin_pb2.ListRequestsResponse)
        pages = [whole, *parts]
        found = [status for part in pages for status in part.requests]
        found.sort(key=lambda status: sort_key(status, request.ended))
        size = page_size(request.page_size)
        is_more = len(found) > size or any(part.next_page_token for part in pages)
        page = found[:size]
        return admin_pb2.ListRequestsResponse(
            requests=page,
            next_page_token=page_token(page[-1], request.ended) if is_more else "",
            total=sum(part.total for part in pages),
            unreached=unreached,
        )

    async def _get_request(
        self, request: admin_pb2.GetRequestRequest, context: Context
    ) -> admin_pb2.GetRequestResponse:
        return await self.find(request)

    async def find(self, request: admin_pb2.GetRequestRequest) -> admin_pb2.GetRequestResponse:
        """The request, at any router, that fits the id best: a running one, else the youngest."""
        own = self._router.operations.requests.find(request)
        parts, unreached = await self._ask("GetRequest", request, admin_pb2.GetRequestResponse)
        found = [part for part in (own, *parts) if part.HasField("trace")]
        whole = admin_pb2.GetRequestResponse(unreached=unreached)
        if not found:
            return whole
        found.sort(key=lambda part: _likely(part.trace.request))
        first, *rest = found
        whole.trace.CopyFrom(first.trace)
        others = [*first.others]
        for part in rest:
            others += [part.trace.request, *part.others]
        whole.others.extend(others[:MOST_OTHERS])
        return whole

    async def _get_pages(
        self, request: admin_pb2.GetPagesRequest, context: Context
    ) -> admin_pb2.GetPagesResponse:
        whole = admin_pb2.GetPagesResponse(workers=await self._pages.look(request))
        if request.check:
            own = await self._own.answer("GetPages", request.SerializeToString())
            whole.routers.extend(admin_pb2.GetPagesResponse.FromString(own).routers)
            parts, unreached = await self._ask("GetPages", request, admin_pb2.GetPagesResponse)
            whole.routers.extend(result for part in parts for result in part.routers)
            whole.unreached.extend(unreached)
        return whole

    async def _list_events(
        self, request: admin_pb2.ListEventsRequest, context: Context
    ) -> admin_pb2.ListEventsResponse:
        return await self.events(request)

    async def events(
        self, request: admin_pb2.ListEventsRequest, *, with_kept: bool = True
    ) -> admin_pb2.ListEventsResponse:
        """One page of all routers' events, and `with_kept` of those in the store that they share.
        Raises `InvalidParameterError`."""
        own = self._router.operations.events.page(request)
        parts, unreached = await self._ask("ListEvents", request, admin_pb2.ListEventsResponse)
        pages = [own, *parts]
        found = {event.id: event for part in pages for event in part.events}
        kept = await self._router.operations.kept_events(request) if with_kept else []
        found |= {event.id: event for event in kept}
        events = merged([*found.values()])
        size = page_size(request.page_size)
        return admin_pb2.ListEventsResponse(
            events=events[-size:],
            left_out=max(0, len(events) - size)
            + (0 if kept else sum(part.left_out for part in pages)),
            remembered_since=min(
                [max(part.remembered_since for part in pages), *(event.at for event in kept[-1:])]
            ),
            unreached=unreached,
        )

    async def _watch_events(self, request: admin_pb2.WatchEventsRequest, context: Context) -> None:
        page = await self.events(request.past)
        watched = Watched(page.events)
        unreached = list(page.unreached)
        await context.write(admin_pb2.WatchEventsResponse(events=page.events, unreached=unreached))
        next_ones = admin_pb2.ListEventsRequest()
        next_ones.CopyFrom(request.past)
        next_ones.since_s, next_ones.page_size = Watched.SINCE_S, 0
        while True:
            await self._router.operations.events.wait(WATCH_S)
            page = await self.events(next_ones, with_kept=False)
            news = watched.news(page.events, time.time())
            if news or list(page.unreached) != unreached:
                unreached = list(page.unreached)
                await context.write(admin_pb2.WatchEventsResponse(events=news, unreached=unreached))

    async def _ask(
        self, method: str, request: Message, response_type: type[LookT]
    ) -> tuple[list[LookT], list[cluster_pb2.RouterStatus]]:
        """The answers of the other routers, and the routers that have not answered."""
        found, missing = await self._peers.look(method, request.SerializeToString())
        return [response_type.FromString(raw) for raw in found], missing


def merged(events: list[cluster_pb2.ClusterEvent]) -> list[cluster_pb2.ClusterEvent]:
    """The events in order of time. If several sources have seen the same change, only the first
    one's event is kept. What one source tells twice has happened twice."""
    events.sort(key=lambda event: (event.at, event.id))
    changes: dict[tuple[str, str, str], list[_Change]] = {}
    kept = []
    for event in events:
        same = changes.setdefault((event.kind, event.subject, event.text), [])
        same[:] = [change for change in same if event.at - change.at < SAME_S]
        if event.HasField("audit"):
            kept.append(event)
            continue
        known = next((its for its in same if event.source not in its.sources), None)
        if known is not None:
            known.sources.add(event.source)
            continue
        same.append(_Change(event.at, {event.source}))
        kept.append(event)
    return kept


class Watched:
    """What one watcher has been told. Show it the events of the last `SINCE_S`, again and again."""

    SINCE_S = OVERLAP_S + SAME_S

    def __init__(self, told: Iterable[cluster_pb2.ClusterEvent]) -> None:
        self._told: deque[str] = deque((event.id for event in told), MOST_REMEMBERED)

    def news(
        self, events: Iterable[cluster_pb2.ClusterEvent], now: float
    ) -> list[cluster_pb2.ClusterEvent]:
        """Those to tell it. The oldest ones are shown so that a second router's word of the same
        change is recognised, and are told by now."""
        since = now - OVERLAP_S
        found = [event for event in events if event.id not in self._told and event.at >= since]
        self._told.extend(event.id for event in found)
        return found


@dataclass(slots=True)
class _Change:
    """What one or more sources have told of, first at `at`."""

    at: float
    sources: set[str]


def _likely(status: cluster_pb2.RequestStatus) -> tuple[bool, float]:
    return bool(status.finish), -status.arrived_at
