"""One random cluster, one random crowd, one run of bad luck, all of it drawn from a seed.

    shape         mixed roles, pools that are nearly full, one or two steps on their way
    crowd         long and short prompts, ids that are used again (after the end, after a hang-up,
                  while the first still runs), clients that leave, deadlines, priorities
    bad luck      kills, cut streams, steps that never end, transports that do not open, bytes that
                  do not move, pages lost or torn on their way

What is known of the end, whatever happened: every answer is the engine's, or the one typed error
that its client had coming; nothing takes longer than `BOUND_S`; no page and no row is left, and
every table of the router and of the workers is as long as it was before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.cluster.tables import BY_PEER, lengths
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.deploy.virtual_cluster.random_faults import replace_hung
from twolane.engine.fake import FakeEngine, FakeEngineConfig, expected_answer
from twolane.errors import DeadlineError, DuplicateRequestError
from twolane.kvtransfer.testing.memory import Faults
from twolane.params import SamplingParams
from twolane.rpc.params import params_to_proto
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2
from twolane.worker.config import StepWatchConfig

BOUND_S = 40.0  # of any one request, bad luck included
TROUBLE_S = 8.0  # bad luck begins within so long
QUIET_S = 75.0  # after this, nothing that was is remembered: the longest memory is 60 s

ROLES: Sequence[tuple[str, ...]] = (
    ("p", "d"),
    ("p", "d", "d"),
    ("p", "p", "d", "d"),
    ("pd",),
    ("pd", "pd"),
    ("pd", "pd", "p"),
    ("pd", "p", "d"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One submission of one client."""

    prompt: tuple[int, ...]
    params: SamplingParams
    request_id: str
    priority: int
    pause_s: float  # before it
    patience_s: float | None  # then the client hangs up
    deadline_s: float | None

    @property
    def answer(self) -> list[int]:
        return expected_answer(self.prompt, self.params, self.params.max_tokens or 0)


class Fuzz:
    """Everything that seed decides."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.shape = self._shape()
        self.clients = [self._client(number) for number in range(self.dice.randint(2, 5))]

    def _shape(self) -> Shape:
        dice = self.dice
        n_pages = dice.choice([40, 64, 256])
        faults = Faults()
        if dice.random() < 0.3:
            faults = Faults(drop=0.001, duplicate=0.01, corrupt=0.001, delay_s=(0.0, 0.03))
        return Shape(
            roles=dice.choice(ROLES),
            n_pages=n_pages,
            make_engine=_engine,
            step_tokens=dice.choice([32, 96]),
            decode_rows=dice.choice([2, 16]),
            transfer_faults=faults,
            sender_writes=dice.random() < 0.5,
            steps_ahead=dice.choice([0, 1]),
            step_watch=StepWatchConfig(first_late_s=10.0),
        )

    def _client(self, number: int) -> list[Ask]:
        """What one client asks, one after the other. Some use one id all the time."""
        dice = self.dice
        own_id = f"order-{dice.choice([number, 0])}" if dice.random() < 0.5 else ""
        longest = self.shape.n_pages * 16 // 2
        return [
            Ask(
                prompt=tuple(
                    dice.randrange(256)
                    for _ in range(dice.choice([1, 16, 17, 60, dice.randint(1, longest)]))
                ),
                params=SamplingParams(max_tokens=dice.randint(1, 60), seed=dice.randrange(99)),
                request_id=own_id,
                priority=dice.choice([0, 0, 0, 5, -5]),
                pause_s=dice.choice([0.0, dice.uniform(0.0, 1.0)]),
                patience_s=dice.uniform(0.0, 0.1) if dice.random() < 0.2 else None,
                deadline_s=dice.uniform(0.01, 5.0) if dice.random() < 0.1 else None,
            )
            for _ in range(dice.randint(1, 4))
        ]


def _engine(n_pages: int) -> FakeEngine:
    return FakeEngine(FakeEngineConfig(n_pages=n_pages))


def play(seed: int, *, checks_tables: bool) -> None:
    """Raises AssertionError saying what went wrong."""
    fuzz = Fuzz(seed)

    async def main() -> None:
        async with virtual_cluster(fuzz.shape, seed) as cluster:
            before = lengths(cluster.router, *_workers(cluster)) if checks_tables else {}
            launcher = asyncio.create_task(replace_hung(cluster))
            trouble = asyncio.create_task(_bad_luck(cluster, fuzz))
            async with asyncio.TaskGroup() as clients:
                for asks in fuzz.clients:
                    clients.create_task(_client(cluster, asks))
            trouble.cancel()
            await asyncio.wait([trouble])
            _end_trouble(cluster)
            await cluster.settle(within_s=20.0)
            if checks_tables:
                await asyncio.sleep(QUIET_S)
                after = lengths(cluster.router, *_workers(cluster))
                _check_tables(before, after, most_peers=len(cluster.lives) ** 2)
            launcher.cancel()

    with virtual_time_runner(seed) as runner:
        runner.run(main())


def _workers(cluster: VirtualCluster) -> list[object]:
    return [life.worker for life in cluster.lives.values()]


def _check_tables(before: dict[str, int], after: dict[str, int], *, most_peers: int) -> None:
    grown = {
        name: f"{before.get(name, 0)} -> {n}"
        for name, n in after.items()
        if n > (most_peers if name in BY_PEER else before.get(name, 0))
    }
    assert not grown, f"tables that did not become empty again: {grown}"


# -- clients ------------------------------------------------------------------------------------


async def _client(cluster: VirtualCluster, asks: Sequence[Ask]) -> None:
    for ask in asks:
        await asyncio.sleep(ask.pause_s)
        try:
            async with asyncio.timeout(ask.patience_s):
                await _one_request(cluster, ask)
        except TimeoutError:
            assert ask.patience_s is not None, "the bound of one request is its own"


async def _one_request(cluster: VirtualCluster, ask: Ask) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    tokens: list[int] = []
    try:
        async with asyncio.timeout(BOUND_S):
            await _read(cluster, ask, tokens)
    except TimeoutError:
        raise AssertionError(f"{ask.request_id or 'a request'}: no end in {BOUND_S} s") from None
    except DuplicateRequestError:
        assert ask.request_id, "nobody else can have an id that the router drew"
        assert loop.time() - started < 1.0, "a duplicate is to be refused at once"
        assert not tokens
    except DeadlineError:
        assert ask.deadline_s is not None, "there was no deadline"
        assert tokens == ask.answer[: len(tokens)]
    else:
        assert tokens == ask.answer, f"{tokens[:5]} ... is not {ask.answer[:5]} ..."


async def _read(cluster: VirtualCluster, ask: Ask, tokens: list[int]) -> None:
    request = inference_pb2.GenerateRequest(
        request_id=ask.request_id,
        token_ids=inference_pb2.TokenIds(ids=ask.prompt),
        sampling=params_to_proto(ask.params),
        priority=ask.priority,
    )
    reason = 0
    async for response in cluster.router.generate(request, time_left_s=ask.deadline_s):
        for token in response.tokens:
            assert token.index == len(tokens), "a token was lost or came twice"
            tokens.append(token.token_id)
        reason = response.finish_reason
    assert reason, "an answer ended without saying why"


# -- bad luck -----------------------------------------------------------------------------------


async def _bad_luck(cluster: VirtualCluster, fuzz: Fuzz) -> None:
    """A few misfortunes, one after the other; each is over, or mended, after some seconds."""
    dice = fuzz.dice
    blows: Sequence[Callable[[], object]] = (
        lambda: _kill(cluster, fuzz),
        lambda: _reset(cluster, fuzz),
        lambda: _hang(cluster, fuzz),
        lambda: _refuse_opens(cluster, fuzz),
        lambda: _stall(cluster, fuzz),
    )
    for _ in range(dice.randint(0, 4)):
        await asyncio.sleep(dice.uniform(0.0, TROUBLE_S / 4))
        blow = dice.choice(blows)()
        if asyncio.iscoroutine(blow):
            await blow


async def _kill(cluster: VirtualCluster, fuzz: Fuzz) -> None:
    name = fuzz.dice.choice(sorted(cluster.lives))
    epoch = await cluster.kill(name)
    try:
        await asyncio.sleep(fuzz.dice.uniform(0.0, 0.5))
    finally:  # whoever killed it sees it end, even when the clients are done meanwhile
        cluster.router.operations.report_gone(epoch)
        cluster.start(name, name.rstrip("0123456789"))


def _reset(cluster: VirtualCluster, fuzz: Fuzz) -> None:
    cluster.reset_streams(fuzz.dice.choice(sorted(cluster.lives)))


def _hang(cluster: VirtualCluster, fuzz: Fuzz) -> None:
    """Its steps end no more. The launcher, which watches, kills it once the router says so."""
    cluster.hung.add(fuzz.dice.choice(sorted(cluster.lives)))


def _refuse_opens(cluster: VirtualCluster, fuzz: Fuzz) -> None:
    """The next transports to be opened are not; links to them break, so that there are some."""
    name = fuzz.dice.choice(sorted(cluster.lives))
    cluster.opens_to_fail[name] += fuzz.dice.randint(1, 3)
    cluster.dials_to_fail[fuzz.dice.choice(sorted(cluster.lives))] += fuzz.dice.randint(0, 2)
    cluster.reset_streams(name)


def _stall(cluster: VirtualCluster, fuzz: Fuzz) -> None:
    name = fuzz.dice.choice(sorted(cluster.lives))
    cluster.stall(name)
    asyncio.get_running_loop().call_later(fuzz.dice.uniform(0.1, 10.0), cluster.resume, name)


def _end_trouble(cluster: VirtualCluster) -> None:
    for name in sorted(cluster.stalled):
        cluster.resume(name)
