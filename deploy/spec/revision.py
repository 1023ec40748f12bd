"""Whether a directory can be another revision of a cluster's model: routers keep the tokenizer that
they have, so it has the same tokens; and all hosts have the same files there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from twolane.engine.config_fields import read_config
from twolane.engine.errors import CheckpointError
from twolane.engine.model_files.weight_files import bytes_to_read, shard_files, weights_revision
from twolane.lfs import is_lfs_pointer, lfs_complaint

READ_S = 20.0  # to read the small files, and to find the large ones
SLOWEST_BYTES_S = 10e6  # at which weights are read
MOST_READ_S = 500.0
_TOKENIZER = "tokenizer.json"
SHOWN = 8  # characters of a fingerprint
_POLL_S = 0.1

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A directory as a host has it. `why_not`: why it cannot be another revision of the model
    (empty: it can); `fingerprint`: of its configuration and weights, equal where the files are."""

    why_not: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """In words: why a directory cannot be another revision (empty: it may), and what was not
    checked. `fingerprint`: of its files, on all hosts that have answered."""

    why_not: str = ""
    unchecked: str = ""
    fingerprint: str = ""


class _Reading:
    """One `read_revision`, in a thread that does not hold up the end of the process."""

    def __init__(self, model_dir: Path, other: str, *, with_weights: bool) -> None:
        self.other = other
        self.began_s = time.monotonic()
        self.seconds: Future[float] = Future()  # that it may take
        self.revision: Future[Revision] = Future()
        self._size = partial(seconds_to_read, Path(other), with_weights=with_weights)
        self._read = partial(read_revision, model_dir, other, with_weights=with_weights)
        for future in (self.seconds, self.revision):
            future.set_running_or_notify_cancel()  # a waiter may give up, and it goes on
        threading.Thread(target=self._run, name="revision", daemon=True).start()

    @property
    def until_s(self) -> float:
        """When it is to have ended, by the monotonic clock."""
        is_known = self.seconds.done() and self.seconds.exception() is None
        return self.began_s + READ_S + (self.seconds.result() if is_known else 0.0)

    def _run(self) -> None:
        _settle(self.seconds, self._size)
        _settle(self.revision, self._read)


_latest: _Reading | None = None  # the only one of this process that may not have ended


async def read_in_time(model_dir: Path, other: str, *, with_weights: bool) -> Revision:
    """As `read_revision`, in a thread. A disk has as much time as there is to read, and one that
    hangs is an answer, too. Readings come one after the other: as long as one hangs, there is no
    other, so that it keeps one thread and not more."""
    global _latest
    while _latest is not None and not _latest.revision.done():  # guard: one thread
        if (now := time.monotonic()) > _latest.until_s:
            for_s = now - _latest.began_s
            return Revision(
                why_not=f"{other} was not read: this host has been reading {_latest.other} for "
                f"{for_s:.0f} s, and its disk hangs. Try again once it answers"
            )
        await asyncio.sleep(_POLL_S)
    _latest = its = _Reading(model_dir, other, with_weights=with_weights)
    bound_s = READ_S
    try:
        async with asyncio.timeout(READ_S):
            bound_s = await asyncio.wrap_future(its.seconds)
        async with asyncio.timeout(bound_s):
            return await asyncio.wrap_future(its.revision)
    except TimeoutError:
        return Revision(why_not=f"{other} was not read in {bound_s:.0f} s: its disk is too slow")


def read_revision(model_dir: Path, other: str, *, with_weights: bool) -> Revision:
    """`other` as this host has it, as another revision of the model in `model_dir`. Reads up to 64
    MiB of each file of weights: of larger ones 16 MiB and the header."""
    path = Path(other)
    if not path.is_absolute():
        return Revision(why_not=f"{other} is not an absolute path")
    try:
        if not path.is_dir():
            return Revision(why_not=f"there is no directory {other}")
        if why_not := _other_tokens(model_dir, path):
            return Revision(why_not=why_not)
        return Revision(fingerprint=_fingerprint(path, with_weights=with_weights))
    except OSError as error:
        where = error.filename or other
        return Revision(why_not=f"{where} cannot be read: {error.strerror or error}")
    except CheckpointError as error:
        return Revision(why_not=f"{other} is no model: {error}")


def seconds_to_read(other: Path, *, with_weights: bool) -> float:
    """`READ_S` where the files are not as they should be: `read_revision` tells how."""
    try:
        n_bytes = bytes_to_read(shard_files(other)) if with_weights else 0
    except (OSError, CheckpointError):
        n_bytes = 0
    return min(MOST_READ_S, READ_S + n_bytes / SLOWEST_BYTES_S)


def fit_everywhere(other: str, found: Mapping[str, Revision], unasked: Iterable[str] = ()) -> Fit:
    """What the hosts of a cluster have found, by name (empty: this machine), and those that could
    not be asked and may not get to load it."""
    whys = [
        f"{host}: {its.why_not}" if host else its.why_not
        for host, its in sorted(found.items())
        if its.why_not
    ]
    if whys:
        return Fit(why_not="; ".join(whys))
    alike: dict[str, list[str]] = defaultdict(list)
    for host, its in sorted(found.items()):
        alike[its.fingerprint].append(host)
    if len(alike) > 1:
        groups = [f"{its[:SHOWN]} on {' and '.join(hosts)}" for its, hosts in alike.items()]
        return Fit(why_not=f"hosts have different files in {other}: {', '.join(groups)}")
    names = " and ".join(sorted(unasked))
    unchecked = f"whether there is {other} on {names}" if names else ""
    return Fit(unchecked=unchecked, fingerprint=next(iter(alike), ""))


def _settle(future: Future[ResultT], work: Callable[[], ResultT]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  raised where it is waited for
        future.set_exception(error)


def _other_tokens(model_dir: Path, other: Path) -> str:
    """Raises `CheckpointError`, or OSError."""
    sizes = [read_config(its / "config.json").get("vocab_size") for its in (model_dir, other)]
    if sizes[0] != sizes[1]:
        return f"{other} has a vocabulary of {sizes[1]}, the model one of {sizes[0]}"
    tokenizers = [its / _TOKENIZER for its in (model_dir, other)]
    if all(its.exists() for its in tokenizers):
        ours, theirs = (its.read_bytes() for its in tokenizers)
        if ours != theirs:
            return f"{other} has another tokenizer: that is another model, not a revision"
    return ""


def _fingerprint(other: Path, *, with_weights: bool) -> str:
    """SHA-256 (hex). Raises `CheckpointError`, or OSError."""
    config = json.dumps(read_config(other / "config.json"), sort_keys=True)
    digest = hashlib.sha256(config.encode())
    if with_weights:
        files = shard_files(other)
        for path in files:
            if is_lfs_pointer(path):
                raise CheckpointError(lfs_complaint(path))
        digest.update(weights_revision(files).encode())
    return digest.hexdigest()
