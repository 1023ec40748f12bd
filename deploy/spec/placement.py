"""Decides which GPUs each worker gets: a pure function of the pools and the available GPUs.

A worker's GPUs are all on one host. Of all placements, the one is taken that lets the largest share
of page transfers stay within a host, and among those one with the fewest hosts:

    share = sum over hosts of min(prefill workers there / all, decode workers there / all)

Within a host the largest workers come first, so that the GPUs of a worker are adjacent, and prefill
and decode workers alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from twolane.deploy.errors import StartError

Counts = tuple[int, ...]  # workers, by pool


@dataclass(frozen=True, slots=True)
class Host:
    """A machine and its GPUs, as CUDA_VISIBLE_DEVICES names them there."""

    name: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """A pool: how many workers it has, and how many GPUs each needs."""

    name: str
    roles: tuple[str, ...]
    workers: int
    gpus: int


@dataclass(frozen=True, slots=True)
class AssignedGpus:
    """A worker's GPUs, one for each rank. No other worker has them unless GPUs are shared. Then
    ranks of one worker may share them too: with n GPUs, ranks i and i + n do."""

    host: str
    gpus: tuple[str, ...]


def place(
    needs: Sequence[Need], hosts: Sequence[Host], *, share: bool = False
) -> list[list[AssignedGpus]]:
    """The seats of each pool's workers, in order. Raises `StartError` if they do not fit.

    With `share`, if there are too few GPUs, a GPU goes to several workers, to as few as possible,
    and to several ranks of a worker that needs more GPUs than any host has.
    """
    largest = max((len(host.gpus) for host in hosts), default=0)
    for need in needs:
        if need.gpus > largest and not (share and largest):
            raise StartError(
                f"a worker of pool {need.name} needs {_gpus(need.gpus)} of one host; {_seen(hosts)}"
            )
    times = 1
    while True:
        split = _best_split(needs, hosts, times)
        if split is not None:
            return _seats(needs, [Host(h.name, h.gpus * times) for h in hosts], split)
        if not share:
            raise StartError(_too_few(needs, hosts))
        times += 1


def _best_split(needs: Sequence[Need], hosts: Sequence[Host], times: int) -> list[Counts] | None:
    """How many workers of each pool go to each host if each GPU may be assigned `times` times; None
    if they do not fit."""
    prefill, decode = (_side(needs, role, [n.workers for n in needs]) for role in _SIDES)
    largest = max(len(host.gpus) for host in hosts)

    @cache
    def best(host: int, left: Counts) -> tuple[tuple[int, int], tuple[Counts, ...]] | None:
        """The best score of the hosts from this one on, and the workers that each of them takes."""
        if not any(left):
            return (0, 0), ()
        if host == len(hosts):
            return None
        found = None
        n_gpus = len(hosts[host].gpus)
        might = tuple(
            n if min(it.gpus, largest) <= n_gpus else 0 for it, n in zip(needs, left, strict=True)
        )
        for here in _fitting(needs, n_gpus * times, might):
            rest = best(host + 1, tuple(n - m for n, m in zip(left, here, strict=True)))
            if rest is None:
                continue
            p, d = (_side(needs, role, here) for role in _SIDES)
            (paired, hosts_saved), others = rest
            score = (paired + min(p * decode, d * prefill), hosts_saved - any(here))
            if found is None or score > found[0]:
                found = score, (here, *others)
        return found

    found = best(0, tuple(need.workers for need in needs))
    return None if found is None else list(found[1])


_SIDES = (("prefill",), ("decode",))


def _side(needs: Sequence[Need], roles: tuple[str, ...], counts: Sequence[int]) -> int:
    return sum(n for need, n in zip(needs, counts, strict=True) if need.roles == roles)


def _fitting(needs: Sequence[Need], room: int, might: Counts) -> Iterator[Counts]:
    """Every combination of workers that fits a host, larger ones first."""
    if not might:
        yield ()
        return
    size = needs[0].gpus
    for n in range(min(might[0], room // size), -1, -1):
        for others in _fitting(needs[1:], room - n * size, might[1:]):
            yield (n, *others)


def _seats(
    needs: Sequence[Need], hosts: Sequence[Host], split: Sequence[Counts]
) -> list[list[AssignedGpus]]:
    seats: list[list[AssignedGpus]] = [[] for _ in needs]
    for host, counts in zip(hosts, split, strict=False):  # hosts at the end may stay empty
        workers = [(pool, i) for pool, n in enumerate(counts) for i in range(n)]
        workers.sort(key=lambda worker: (-needs[worker[0]].gpus, worker[1], worker[0]))
        taken = 0
        for pool, _ in workers:
            end = taken + needs[pool].gpus
            seats[pool].append(AssignedGpus(host.name, host.gpus[taken:end]))
            taken = end
    return seats


def _too_few(needs: Sequence[Need], hosts: Sequence[Host]) -> str:
    each = ", ".join(f"{need.name}: {need.workers} of {need.gpus}" for need in needs)
    wanted = sum(need.workers * need.gpus for need in needs)
    n_workers = sum(need.workers for need in needs)
    who = "1 worker needs" if n_workers == 1 else f"{n_workers} workers need"
    there = sum(len(host.gpus) for host in hosts)
    how = "in groups that no split of the hosts has room for" if wanted <= there else "in all"
    return f"{who} {_gpus(wanted)} {how} ({each}); {_seen(hosts)}"


def _gpus(n: int) -> str:
    return "1 GPU" if n == 1 else f"{n} GPUs"


def _seen(hosts: Sequence[Host]) -> str:
    if len(hosts) == 1:
        return f"{len(hosts[0].gpus)} can be seen here"
    return f"there are {', '.join(f'{len(h.gpus)} at {h.name}' for h in hosts) or 'none'}"
