"""What a cluster is to be, as one frozen value: the only place that says how large a pool is, and
who is to go. Operators' acts change it, and the supervisor makes the cluster so.

It is kept where the controller's term is kept (`twolane.deploy.agent.term`), and saved there before
anything is done: a controller that takes over goes on where its predecessor has stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

MOST_DONE = 64  # answers that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a worker runs, or is to run: its host (empty: this machine) and its GPUs there, one for
    each rank; none on a CPU. A worker that was flipped keeps its name, and has the other pool.
    `roles`: others than its pool's. `model_dir`: the revision of the model; empty: the configured
    one."""

    name: str
    pool: str
    host: str = ""
    devices: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    model_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pool's size as an operator has set it. `left_s`: how much longer, when this was saved; 0:
    until it is lifted."""

    pool: str
    n: int
    left_s: float = 0.0


class Mode(StrEnum):
    """DRY_RUN decides and tells, and does nothing. PAUSED does not decide."""

    ON = "on"
    DRY_RUN = "dry-run"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A pool's size as the law wants it; a pin goes before it."""

    pool: str
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A worker that is to go, and whose seat is taken until it is proven dead. It drains and is
    stopped on its ticket; or is killed at once. `renew`: then it starts again on that seat, with
    the revision that a rollout gives it."""

    name: str
    kill: bool = False
    hand_over: bool = False
    renew: bool = False

    def words(self, goal: str) -> str:
        """For operators. `goal`: the revision of one that is renewed."""
        if self.renew:
            return f"is to drain and start again with {goal}"
        return "is to be killed" if self.kill else "is to drain and go"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The change of all workers from one revision of the model to another, by the revisions'
    directories (empty: the configured one). `canary`: the share of new requests for the first new
    pair, for as long as it `holds`. `extra`: pools of one worker, which have two meanwhile.
    `fingerprint`: of the files in `after`, as hosts had them when it began; empty: not known."""

    before: str
    after: str
    canary: float = 0.0
    extra: tuple[str, ...] = ()
    holds: bool = False
    paused: bool = False
    undo: bool = False
    is_over: bool = False
    fingerprint: str = ""

    @property
    def goal(self) -> str:
        """The revision that every worker is to have in the end."""
        return self.before if self.undo else self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change by an act, as shown to operators: `decode-1`, `` -> `starts on b`. `stays`: what
    runs on while its host is drained, and would end with the host."""

    subject: str
    before: str
    after: str
    stays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The response to an act, kept for a caller that repeats it. `epoch`: the one that it fences,
    and `proof`: of that end, in words; empty while there is none."""

    request_id: str
    changes: tuple[Change, ...]
    epoch: int = 0
    proof: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InPod:
    """A worker's incarnation in a pod that comes and goes: the pod is `host` with that boot id, on
    `node`. Another pod of the name knows nothing of it."""

    name: str
    epoch: int
    pid: int
    host: str
    boot_id: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """Each worker has one seat, and one removal at most; `undrain` are workers that were to go and
    are wanted again. Raises ValueError otherwise."""

    revision: int = 0
    pins: tuple[Pin, ...] = ()
    cordoned: tuple[str, ...] = ()  # hosts that get no new workers
    seats: tuple[Seat, ...] = ()
    removals: tuple[Removal, ...] = ()
    undrain: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()  # none: an operator alone changes them
    mode: str = ""  # of the law ; empty: on
    config: tuple[tuple[str, str], ...] = ()  # what operators have set: JSON, by name
    config_revision: int = 0
    model_dir: str = ""  # the revision of workers that pools get; empty: the configured one
    rollout: Rollout | None = None  # the latest
    done: tuple[Done, ...] = field(default=(), compare=False)
    in_pods: tuple[InPod, ...] = field(default=(), compare=False)  # as the launcher has saved it

    def __post_init__(self) -> None:
        names = [seat.name for seat in self.seats]
        leaving = [removal.name for removal in self.removals]
        for of in (names, leaving, [pin.pool for pin in self.pins]):
            if len({*of}) < len(of):
                raise ValueError(f"somebody is named twice: {', '.join(of)}")
        if {*leaving} & {*self.undrain}:
            raise ValueError(f"{', '.join({*leaving} & {*self.undrain})} is to go and to stay")

    def pin(self, pool: str) -> Pin | None:
        return next((pin for pin in self.pins if pin.pool == pool), None)

    def size(self, pool: str) -> Size | None:
        return next((size for size in self.sizes if size.pool == pool), None)

    @property
    def rolling(self) -> Rollout | None:
        """The rollout that is under way."""
        return None if self.rollout is None or self.rollout.is_over else self.rollout

    def fingerprint(self, model_dir: str) -> str:
        """Of the files of that revision; empty: not known."""
        its = self.rollout
        return its.fingerprint if its is not None and its.after == model_dir else ""

    def sized(self) -> Desired:
        """Set the law's size of each pool to its present size, without workers to be removed."""
        sizes = tuple(Size(pool=its.pool, n=len(self.staying(its.pool))) for its in self.sizes)
        return replace(self, sizes=sizes)

    def flipped(self, name: str, pool: str) -> Desired:
        """Move that worker to the other pool, with that pool's roles."""
        seats = tuple(
            replace(seat, pool=pool, roles=()) if seat.name == name else seat for seat in self.seats
        )
        return replace(self, seats=seats)

    def seat(self, name: str) -> Seat | None:
        return next((seat for seat in self.seats if seat.name == name), None)

    def removal(self, name: str) -> Removal | None:
        return next((each for each in self.removals if each.name == name), None)

    def is_wanted(self, name: str) -> bool:
        """Whether that worker should run, and be restarted when it dies."""
        return self.seat(name) is not None and self.removal(name) is None

    def staying(self, pool: str) -> list[Seat]:
        """The pool's workers that should run, or are to start again."""
        return [s for s in self.seats if s.pool == pool and self._stays(s.name)]

    def _stays(self, name: str) -> bool:
        removal = self.removal(name)
        return removal is None or removal.renew

    def answer(self, request_id: str) -> Done | None:
        """Of that act; None if it was never carried out, or too long ago."""
        found = (done for done in self.done if done.request_id == request_id)
        return next(found, None) if request_id else None

    def answered(self, request_id: str, changes: Sequence[Change], epoch: int = 0) -> Desired:
        if not request_id:
            return self
        done = Done(request_id=request_id, changes=tuple(changes), epoch=epoch)
        return replace(self, done=(*self.done, done)[-MOST_DONE:])

    def proven(self, request_id: str, proof: str) -> Desired:
        """Keep the proof that the act has got, with its answer."""
        done = tuple(
            replace(its, proof=proof) if request_id and its.request_id == request_id else its
            for its in self.done
        )
        return replace(self, done=done)

    def pinned(self, pool: str, n: int | None, for_s: float = 0.0) -> Desired:
        """Pin the pool; None removes the pin."""
        others = tuple(pin for pin in self.pins if pin.pool != pool)
        new = () if n is None else (Pin(pool=pool, n=n, left_s=for_s),)
        return replace(self, pins=others + new)

    def added(self, seat: Seat) -> Desired:
        return replace(self, seats=(*self.seats, seat))

    def removed(self, removal: Removal) -> Desired:
        """Mark the worker for removal. A kill is never turned back into a drain."""
        former = self.removal(removal.name)
        if former is not None and (former.kill or not removal.kill):
            hand_over, renew = former.hand_over or removal.hand_over, former.renew and removal.renew
            removal = replace(former, hand_over=hand_over, renew=renew)
        others = tuple(each for each in self.removals if each.name != removal.name)
        undrain = tuple(name for name in self.undrain if name != removal.name)
        return replace(self, removals=(*others, removal), undrain=undrain)

    def kept(self, name: str) -> Desired:
        """Withdraw the removal and undo the worker's drain."""
        others = tuple(each for each in self.removals if each.name != name)
        return replace(self, removals=others, undrain=(*self.undrain, name))

    def undrained(self, name: str) -> Desired:
        return replace(self, undrain=tuple(each for each in self.undrain if each != name))

    def renewed(self, name: str) -> Desired:
        """Keep the seat of a worker that is proven dead, for the next one under its name."""
        model_dir = self.model_dir if self.rolling is None else self.rolling.goal
        seats = tuple(
            replace(seat, model_dir=model_dir) if seat.name == name else seat for seat in self.seats
        )
        others = tuple(each for each in self.removals if each.name != name)
        undrain = tuple(each for each in self.undrain if each != name)
        return replace(self, seats=seats, removals=others, undrain=undrain)

    def gone(self, name: str) -> Desired:
        """Free the seat of a worker that is proven dead."""
        return replace(
            self,
            seats=tuple(seat for seat in self.seats if seat.name != name),
            removals=tuple(each for each in self.removals if each.name != name),
            undrain=tuple(each for each in self.undrain if each != name),
        )

    def only(self, pools: Collection[str], hosts: Collection[str]) -> Desired:
        """Without pools and hosts that a changed topology no longer has."""
        seats = tuple(s for s in self.seats if s.pool in pools and s.host in hosts)
        names = {seat.name for seat in seats}
        return replace(
            self,
            pins=tuple(pin for pin in self.pins if pin.pool in pools),
            sizes=tuple(size for size in self.sizes if size.pool in pools),
            cordoned=tuple(host for host in self.cordoned if host in hosts),
            seats=seats,
            removals=tuple(each for each in self.removals if each.name in names),
            undrain=tuple(name for name in self.undrain if name in names),
        )
