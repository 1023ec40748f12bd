"""Reads which prompt prefixes other routers have assigned to which workers."""

from __future__ import annotations

import asyncio
import logging
from array import array
from typing import Any

from redis.exceptions import RedisError

from twolane.router.shared.connect import StoreClient
from twolane.router.shared.keys import Keys
from twolane.router.store import PrefixSink
from twolane.rpc.log_rate import LogRate

log = logging.getLogger(__name__)

_AT_ONCE = 200  # notes read in one iteration of the event loop
_POLL_S = 0.1  # between polls; a blocking read would occupy a connection
_PAUSE_S = 1.0  # after a failure


async def read_prefixes(client: StoreClient, keys: Keys, own: str, sink: PrefixSink) -> None:
    """Read the whole stream, then new notes, until the client closes. Notes by this router, `own`,
    are skipped, and so are those that cannot be read: another version of routers may write them.
    """
    last: bytes = b"0"
    log_rate = LogRate()
    while not client.is_closing:
        try:
            answer = await client.run(("XREAD", "COUNT", _AT_ONCE, "STREAMS", keys.prefixes, last))
        except (RedisError, OSError) as error:
            log.debug("prefixes of other routers cannot be read now: %s", error)
            await asyncio.sleep(_PAUSE_S)
            continue
        notes = _notes(answer, keys)
        for note_id, fields in notes:
            last = note_id
            if fields.get(b"by") == own.encode():
                continue
            try:
                names, epoch = _names(fields), int(fields[b"epoch"], 16)
            except (KeyError, ValueError) as error:
                if n := log_rate.take("note", asyncio.get_running_loop().time()):
                    log.warning("skipped %d unreadable notes of prefixes; the last: %r", n, error)
                continue
            sink(names, epoch)
        await asyncio.sleep(0 if len(notes) == _AT_ONCE else _POLL_S)


def _notes(answer: Any, keys: Keys) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The notes in an answer, each with its id. The answer is empty if there is nothing new."""
    if not answer:
        return []
    streams = answer if isinstance(answer, dict) else dict(answer)
    (entries,) = streams[keys.prefixes.encode()]
    return list(entries)


def _names(fields: dict[bytes, bytes]) -> array[int]:
    names = array("Q")
    names.frombytes(fields[b"names"])
    return names
