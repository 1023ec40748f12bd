"""Chooses tokens on the device, without waiting on the host: see `twolane.engine.cpu.logits` for
the order.

The sampler kernel alone handles greedy rows and plain temperature. Rows with other parameters are
sampled again afterwards, with torch operations on copies of their logits, and replace the kernel's
choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from twolane.engine.cpu.logits import leaves_logits_alone
from twolane.engine.cuda.inputs import DeviceInputs
from twolane.engine.kernels.launch import card_of
from twolane.engine.kernels.pdl import APART, OVERLAP
from twolane.engine.kernels.rows.sample import NOT_FINITE, sample
from twolane.engine.step import RowWork

NOT_DRAWN = "no token can be sampled: the logits are not finite, or every token is banned"


def is_plain(work: RowWork) -> bool:
    """Whether the kernel alone chooses the row's token."""
    params = work.params
    if not leaves_logits_alone(params, work.n_tokens - work.n_prompt):
        return False
    return params.is_greedy or not (params.top_k or params.top_p < 1 or params.min_p)


def likeliest(logprobs: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probabilities [rows, n] of the n likeliest tokens, likeliest first, and the lower
    id first where they tie. `logprobs`: [rows, vocab] float32, none above 0."""
    # Floats that are not negative sort like integers; `topk` promises no order among equals.
    keys = (0.0 - logprobs).view(torch.int32).long() << 32
    keys |= torch.arange(logprobs.shape[1], device=logprobs.device)
    ids = keys.topk(n, dim=-1, largest=False, sorted=True).values & 0xFFFFFFFF
    return ids, logprobs.gather(1, ids)


@dataclass(slots=True)  # made for every row of every step: frozen would take twice as long
class Sampled:
    """One row to sample: its work, its row in the logits, and the position of its newest token."""

    work: RowWork
    row: int
    place: int  # in the pass's ids


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a pass samples, in the order of its logits' rows: [any] int32 and [any] float32."""

    tokens: torch.Tensor
    logprobs: torch.Tensor


class DeviceSampler:
    """Samples rows of one vocabulary. `exact`: a row's bits depend only on that row.

    The ranks of a model each sample the same; `agreed` ensures it if NCCL's sums decide.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        exact: bool,
        agreed: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._exact = exact
        self._agreed = agreed

    def parameter_error(self, work: RowWork) -> str:
        """Why the row's parameters do not fit the vocabulary, or an empty string."""
        for token in work.params.logit_bias:
            if token >= self._vocab_size:
                return f"logit_bias names token {token}; the vocabulary has {self._vocab_size}"
        if work.params.repetition_penalty != 1.0:
            ids = np.asarray(work.token_ids[: work.n_known], np.int64)
            if ids.min() < 0 or ids.max() >= self._vocab_size:
                return f"a token of the row is outside the vocabulary of {self._vocab_size}"
        return ""

    def draw(self, logits: torch.Tensor, inputs: DeviceInputs, fresh: Fresh) -> None:
        """Sample all rows of logits `[s, vocab]` by temperature only; may be part of a CUDA
        graph."""
        n, on_card = len(logits), card_of(logits.device) is not None
        sample(
            logits, inputs.temperatures, inputs.seeds, inputs.samples, inputs.index,
            tokens=fresh.tokens[:n], logprobs=fresh.logprobs[:n],
            # The library gathers the ranks' logits on a stream of its own.
            pdl=OVERLAP if on_card and self._agreed is None and not self._exact else APART,
        )  # fmt: skip

    def refine(
        self, logits: torch.Tensor, inputs: DeviceInputs, fresh: Fresh, rows: Sequence[Sampled]
    ) -> None:
        """Sample the rows that are not plain again, after `draw`."""
        special = [row for row in rows if not is_plain(row.work)]
        groups = [[row] for row in special] if self._exact else [special] * bool(special)
        for group in groups:
            self._refine(logits, inputs, fresh, group)

    def _refine(
        self, logits: torch.Tensor, inputs: DeviceInputs, fresh: Fresh, rows: list[Sampled]
    ) -> None:
        device = logits.device
        at = upload([row.row for row in rows], np.int64, device)
        raw = logits.index_select(0, at).float()
        changed = self._adjust(raw, inputs, rows)
        self._keep_likely(changed, rows)
        tokens = torch.empty(len(rows), dtype=torch.int32, device=device)
        logprobs = torch.empty(len(rows), dtype=torch.float32, device=device)
        sample(
            changed, inputs.temperatures[at], inputs.seeds[at], inputs.samples[at],
            inputs.index[at], tokens=tokens, logprobs=logprobs,
        )  # fmt: skip
        if self._agreed is not None:
            tokens = self._agreed(tokens)
        broken = fresh.tokens[at] == NOT_FINITE
        tokens = tokens.masked_fill(broken, NOT_FINITE)
        chosen = tokens.clamp(min=0).long()[:, None]
        logprobs = torch.log_softmax(raw, -1).gather(1, chosen)[:, 0]
        fresh.tokens.index_copy_(0, at, tokens)
        fresh.logprobs.index_copy_(0, at, logprobs)

    def _adjust(self, raw: torch.Tensor, inputs: DeviceInputs, rows: list[Sampled]) -> torch.Tensor:
        """Bias, ban and penalties, on a copy of raw `[n, vocab]` float32."""
        logits, device = raw.clone(), raw.device
        for i, row in enumerate(rows):
            params, work = row.work.params, row.work
            if params.logit_bias:
                ids = upload(list(params.logit_bias), np.int64, device)
                logits[i, ids] += upload(list(params.logit_bias.values()), np.float32, device)
            if work.n_tokens - work.n_prompt < params.min_tokens:
                banned = sorted({*self._eos_token_ids, *params.stop_token_ids})
                banned = [token for token in banned if token < self._vocab_size]
                logits[i].index_fill_(0, upload(banned, np.int64, device), float("-inf"))
            if params.repetition_penalty != 1.0:
                seen = self._counts(row, inputs, 0) > 0
                factor = params.repetition_penalty
                penalised = torch.where(logits[i] > 0, logits[i] / factor, logits[i] * factor)
                logits[i] = torch.where(seen, penalised, logits[i])
            if params.frequency_penalty or params.presence_penalty:
                counts = self._counts(row, inputs, work.n_prompt)
                logits[i] -= params.frequency_penalty * counts
                logits[i] -= params.presence_penalty * (counts > 0)
        return logits

    def _counts(self, row: Sampled, inputs: DeviceInputs, first: int) -> torch.Tensor:
        """`[vocab]` float32: how often each token occurs in the row from `first` on; the newest may
        be known only to the device."""
        work, device = row.work, inputs.ids.device
        known = upload(list(work.token_ids[first : work.n_known]), np.int64, device)
        if work.follows:
            newest = inputs.ids[row.place : row.place + 1].long()
            known = torch.cat([known, newest])
        # Integers: the order of addition does not matter.
        counts = torch.zeros(self._vocab_size, dtype=torch.float32, device=device)
        return counts.index_add_(0, known, torch.ones_like(known, dtype=torch.float32))

    def _keep_likely(self, logits: torch.Tensor, rows: list[Sampled]) -> None:
        """Set the logits of tokens that min_p, top_k and top_p drop to -inf, in place."""
        device, n = logits.device, len(rows)
        params = [row.work.params for row in rows]
        if all(p.is_greedy or not (p.top_k or p.top_p < 1 or p.min_p) for p in params):
            return
        vocab = self._vocab_size

        def column(values: list[float]) -> torch.Tensor:
            return upload(values, np.float32, device)[:, None]

        temperature = column([max(p.temperature, 1e-30) for p in params])
        least = column([float(np.log(p.min_p)) if p.min_p else -np.inf for p in params])
        most = column([0.0 if p.is_greedy else p.top_k or vocab for p in params])
        # Not rounded: 0.3 as a float32 is more, and would keep a fourth of ten equal tokens.
        wanted = upload([p.top_p for p in params], np.float64, device)[:, None]
        everything = column([float(p.is_greedy or p.top_p == 1) for p in params]) > 0
        scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(vocab, device=device)[None, :]
        alive = (ordered >= least) & ((rank < most) | (most == 0)) & (ordered > float("-inf"))
        mass = torch.where(alive, ordered.exp(), 0.0).double()
        before = mass.cumsum(-1) - mass
        alive &= everything | (before < wanted * mass.sum(-1, keepdim=True))
        alive[:, 0] = True
        keep = torch.empty_like(alive).scatter_(1, order, alive)
        greedy = column([float(p.is_greedy) for p in params]) > 0
        logits.masked_fill_(~(keep | greedy), float("-inf"))
        assert logits.shape == (n, vocab)


def upload(values: Sequence[float], dtype: npt.DTypeLike, device: torch.device) -> torch.Tensor:
    """A small tensor on the device; the host does not wait for the copy."""
    held = torch.from_numpy(np.asarray(values, dtype))
    if device.type != "cuda":
        return held
    return held.pin_memory().to(device, non_blocking=True)
