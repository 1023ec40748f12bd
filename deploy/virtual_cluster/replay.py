"""Requests played on a virtual cluster, and what their clients see."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twolane.deploy.simulator.cluster import Slo
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.deploy.virtual_cluster.timed import VOCABULARY
from twolane.params import SamplingParams
from twolane.rpc.params import params_to_proto
from twolane.security.identity import ANONYMOUS
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2

_LATE_GAPS = 0.01  # of its own, that a request which holds the SLO may have
_P99 = 2.326  # standard deviations


@dataclass(frozen=True)
class Request:
    """`prompt`: token ids, which begin as others' do where a prefix is shared."""

    at_s: float
    prompt: Sequence[int]
    n_answer: int


@dataclass(frozen=True)
class Seen:
    """What one client saw. `gaps_s`: between its tokens. `cached`: tokens of its prompt that were
    not computed again. `is_local`: it was decoded where its prompt was computed."""

    at_s: float
    ttft_s: float
    end_s: float
    gaps_s: npt.NDArray[np.float32]
    cached: int
    is_local: bool

    @property
    def gap_p99_s(self) -> float:
        """Of its own gaps; 0 if there are none."""
        return float(np.quantile(self.gaps_s, 0.99)) if len(self.gaps_s) else 0.0

    def has_late_gaps(self, slo: Slo, *, with_hand_over: bool = True) -> bool:
        """Whether more than 1 % of its gaps are longer than the SLO's. The first one, in which its
        row comes to the decode worker, is left out unless `with_hand_over`."""
        gaps_s = self.gaps_s if with_hand_over else self.gaps_s[1:]
        return bool((gaps_s > slo.gap_s).sum() > _LATE_GAPS * (len(self.gaps_s) + 1))

    def holds(self, slo: Slo, *, with_hand_over: bool = True) -> bool:
        is_late = self.has_late_gaps(slo, with_hand_over=with_hand_over)
        return self.ttft_s <= slo.ttft_s and not is_late


def unlike(requests: Requests, seed: int = 0) -> list[Request]:
    """Prompts of those lengths, of which no two begin alike."""
    dice = np.random.default_rng(seed)
    return [
        Request(float(at_s), dice.integers(0, VOCABULARY, n_prompt).tolist(), int(n_answer))
        for at_s, n_prompt, n_answer in zip(
            requests.arrivals_s, requests.prompt_tokens, requests.output_tokens, strict=True
        )
    ]


async def replay(
    cluster: VirtualCluster, requests: Sequence[Request], *, gap_jitter_s: float = 0.0
) -> list[Seen]:
    """Ask each at its time, and wait for all answers. Returns them in order of the requests.
    `gap_jitter_s`: the 99th percentile of what gaps vary by on their way to a client."""
    clock = asyncio.get_running_loop().time
    dice = np.random.default_rng(1)
    zero_s = clock()
    asked = []
    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            await asyncio.sleep(max(0.0, zero_s + request.at_s - clock()))
            asked.append(tasks.create_task(_ask(cluster, request, dice, gap_jitter_s)))
    return [one.result() for one in asked]


async def _ask(
    cluster: VirtualCluster, request: Request, dice: np.random.Generator, gap_jitter_s: float
) -> Seen:
    clock = asyncio.get_running_loop().time
    begun_s, times_s = clock(), []
    message = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=request.prompt),
        sampling=params_to_proto(SamplingParams(max_tokens=request.n_answer)),
    )
    async for response in cluster.router.generate(message, ANONYMOUS):
        times_s += [clock()] * len(response.tokens)
    ledger = response.ledger
    late_s = dice.normal(0.0, gap_jitter_s / _P99 / math.sqrt(2), len(times_s))  # each token
    return Seen(
        at_s=begun_s,
        ttft_s=times_s[0] - begun_s,
        end_s=clock(),
        gaps_s=np.diff(np.array(times_s) + late_s).astype(np.float32),
        cached=ledger.cached_tokens,
        is_local=ledger.prefill_worker == ledger.decode_worker,
    )


def play(requests: Sequence[Request], shape: Shape, *, gap_jitter_s: float = 0.0) -> list[Seen]:
    """`replay` on a cluster of that shape, under virtual time."""

    async def main() -> list[Seen]:
        async with virtual_cluster(shape) as cluster:
            return await replay(cluster, requests, gap_jitter_s=gap_jitter_s)

    with virtual_time_runner() as runner:
        return runner.run(main())
