"""The engine on a GPU: steps are launched without waiting, so that they can be pipelined.

    submit k       pack -> copy in -> forward, sample -> copy out -> event k
    submit k + 1        pack -> copy in -> ...               reads k's samples on the device
    result of k                                     wait for event k

Everything runs on the engine's own stream, in the order of submission.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from twolane.engine.cuda.all_reduce import AllReduce
from twolane.engine.cuda.driver import CudaError, export_memory
from twolane.engine.cuda.graphs import PassGraphs
from twolane.engine.cuda.inputs import DeviceInputs, HostInputs
from twolane.engine.cuda.memory import RawMemory
from twolane.engine.cuda.model import CudaModel
from twolane.engine.cuda.packing import decode_shape, pack_decode, pack_mixed, pack_prompts
from twolane.engine.cuda.plans import (
    MAX_ROWS,
    PROMPT_BUCKETS,
    PROMPTS,
    STEP_ROWS,
    bucket_for,
    prompt_bucket_for,
)
from twolane.engine.cuda.sampler import DeviceSampler, Fresh, Sampled, is_plain, likeliest, upload
from twolane.engine.cuda.shares import Pass, Share, split_passes
from twolane.engine.cuda.stages import stage
from twolane.engine.cuda.step import CudaStep, Outcome, TopTables
from twolane.engine.step import (
    ByteArray,
    DevicePool,
    DoneStep,
    EngineSpec,
    RowResult,
    RowWork,
    Step,
    row_error,
)

_LISTED_ROWS = 32  # whose likeliest tokens are found at once: a row of 128k tokens takes 3 MB
_MOST_APART = 1024  # tokens of prompts; launching is hidden behind longer ones

log = logging.getLogger(__name__)


class CudaEngine:
    """Implements `twolane.engine.step.Engine`. Created by
    `twolane.engine.cuda.startup.load.load_cuda_engine`."""

    steps_ahead = 1

    def __init__(
        self,
        spec: EngineSpec,
        model: CudaModel,
        memory: RawMemory,
        *,
        latest: torch.Tensor,
        table_pages: int,
        exact: bool,
        all_reduce: AllReduce | None = None,
        graphed_tokens: int | None = None,
    ) -> None:
        """`graphed_tokens`: see `Tuning`; may be lowered between steps."""
        device = memory.device
        self.spec = spec
        self.pool: ByteArray = np.zeros((0, spec.page_bytes), np.uint8)
        self.device_pool: DevicePool | None = DevicePool(
            device.index or 0, (memory.address,), memory.n_bytes
        )
        self._model = model
        self._memory: RawMemory | None = memory
        self._device = device
        self._exact = exact
        self._table_pages = table_pages
        self._pinned = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._pinned else None  # type: ignore[no-untyped-call]
        self._sampler = DeviceSampler(
            spec.vocab_size,
            spec.eos_token_ids,
            exact=exact,
            agreed=None if all_reduce is None else all_reduce.agreed,
        )
        self._latest = latest  # [2, rows]: tokens, bits of log-probabilities
        fresh = torch.zeros_like(latest)
        self._fresh_bits = fresh
        self._fresh = Fresh(fresh[0], fresh[1].view(torch.float32))
        has_graphs = self._pinned and (all_reduce is None or not all_reduce.waits)
        self._graphs = PassGraphs(self._forward, device, has_graphs=has_graphs)
        if graphed_tokens is None:
            graphed_tokens = PROMPT_BUCKETS[-1] if has_graphs else 0
        self.graphed_tokens = graphed_tokens if model.may_graph_prompts else 0
        self._places: dict[int, int] = {}  # by row: the index of the last step's sample

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        """See `twolane.engine.step.Engine.run`. An empty batch gives an empty list."""
        return self.submit(work).result()

    def submit(self, work: Sequence[RowWork]) -> Step:
        """See `twolane.engine.step.Engine.submit`. Returns when everything is launched: a step of a
        kind that was not warmed up compiles kernels first, which takes seconds."""
        return self._submit(work)

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        """Whether these are rows of answers only, sampled by the kernel alone, and the graphs of
        their passes are captured."""
        if not all(map(_only_replays, work)):
            return False
        whole, rest = divmod(len(work), MAX_ROWS)
        sizes = [MAX_ROWS] * bool(whole) + [bucket_for(rest)] * bool(rest)
        return all(self._graphs.has(decode_shape(size, self._table_pages)) for size in sizes)

    def run_few_layers(self, work: Sequence[RowWork]) -> list[RowResult]:
        """Like `run`, but with few layers: loads everything that such a step needs. The results are
        meaningless."""
        return self._submit(work, few_layers=True).result()

    def _submit(self, work: Sequence[RowWork], *, few_layers: bool = False) -> Step:
        assert self._memory is not None, "the engine is closed"
        errors = [self._error_of(row) for row in work]
        sound = [(nth, row) for nth, row in enumerate(work) if not errors[nth]]
        if not sound:
            self._places = {}
            return DoneStep([RowResult(w.row, error=e) for w, e in zip(work, errors, strict=True)])
        assert len(sound) <= STEP_ROWS, f"{len(sound)} rows in a step; at most {STEP_ROWS}"
        outcomes = [Outcome(row.row, error) for row, error in zip(work, errors, strict=True)]
        with torch.inference_mode(), self._on_stream():
            return self._launch(sound, outcomes, few_layers)

    def capture(self, bucket: int) -> None:
        """Capture the graph of a decode step with `bucket` rows, none of which writes."""
        with torch.inference_mode(), self._on_stream():
            self._graphs.run(self._pack_decode([], bucket))

    def capture_prompts(self, tokens: int) -> None:
        """Capture the graph of passes of prompts with up to `tokens` tokens, a bucket; writes
        nothing, and does nothing if no pass uses it."""
        if prompt_bucket_for(tokens, self.graphed_tokens, exact=self._exact) == tokens:
            with torch.inference_mode(), self._on_stream():
                self._graphs.run(self._pack_prompts([], tokens))

    def zero_pool(self) -> None:
        """Zero the pool, as it was at first. No row may have pages in it."""
        assert self._memory is not None, "the engine is closed"
        with torch.inference_mode(), self._on_stream():
            self._memory.tensor.zero_()
        self._places = {}
        if self._stream is not None:
            self._stream.synchronize()

    def export_pool(self) -> None:
        """Make `device_pool` describe how other processes map it; logs a warning if they cannot."""
        assert self.device_pool is not None
        try:
            exports = tuple(export_memory(address) for address in self.device_pool.addresses)
        except CudaError as error:
            log.warning("other processes cannot map the pool: %s", error)
        else:
            self.device_pool = replace(self.device_pool, exports=exports)

    def close(self) -> None:
        """Wait for running steps, free the pool. May be called twice."""
        memory, self._memory = self._memory, None
        if memory is not None:
            if self._stream is not None:
                self._stream.synchronize()
            self._graphs.close()
            memory.close()
            self.device_pool = None

    # -- inside -----------------------------------------------------------------------------

    def _launch(
        self, sound: list[tuple[int, RowWork]], outcomes: list[Outcome], few_layers: bool
    ) -> Step:
        places: dict[int, int] = {}
        tops: list[tuple[torch.Tensor, torch.Tensor]] = []
        n_sampled = n_top = 0
        passes = split_passes(sound, exact=self._exact, most_rows=MAX_ROWS)
        if not few_layers:
            passes = [part for what in passes for part in self._apart(what)]
        # A later pass may read what the last step has sampled.
        collected = self._latest if len(passes) == 1 else torch.empty_like(self._latest)
        for what in passes:
            inputs, logits, sampled, nths = self._run_pass(what, few_layers)
            with stage("refine", self._device):
                self._sampler.refine(logits, inputs, self._fresh, sampled)
            n = len(sampled)
            if n:
                self._collect(sampled, collected[:, n_sampled : n_sampled + n])
            listed = [row for row in sampled if row.work.params.top_logprobs]
            # The library's softmax of a row can depend on the number of rows.
            n_at_once = 1 if self._exact else _LISTED_ROWS
            tops += [
                self._likeliest(logits, listed[at : at + n_at_once])
                for at in range(0, len(listed), n_at_once)
            ]
            for i, (row, nth) in enumerate(zip(sampled, nths, strict=True)):
                places[row.work.row] = place = n_sampled + i
                wanted = row.work.params.top_logprobs
                top = (n_top, wanted) if wanted else None
                n_top += top is not None
                outcomes[nth] = Outcome(row.work.row, "", place, wanted is not None, top)
            n_sampled += n
        if collected is not self._latest:
            self._latest[:, :n_sampled].copy_(collected[:, :n_sampled])
        self._places = places
        tables = self._tables(tops)
        host = self._to_host(self._latest)
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return CudaStep(outcomes, host[:, :n_sampled], tables, event)

    def _apart(self, what: Pass) -> list[Pass]:
        """Rows of answers and short prompts of one pass as two, where both run as graphs: the host
        takes longer to launch kernels one by one than the card to read the weights again."""
        prompts = Pass([], what.chunks)
        n_tokens = sum(share.n_new for share in what.chunks)
        if not what.decode or not what.chunks or n_tokens > _MOST_APART:
            return [what]
        shape = decode_shape(bucket_for(len(what.decode)), self._table_pages)
        if self._bucket_of_prompts(prompts) is None or not self._graphs.has(shape):
            return [what]
        return [Pass(what.decode, []), prompts]

    def _run_pass(
        self, what: Pass, few_layers: bool
    ) -> tuple[DeviceInputs, torch.Tensor, list[Sampled], list[int]]:
        """Launch one pass; returns its inputs, logits, sampled rows, and their places in the
        step."""
        page_tokens, n_decode = self.spec.page_tokens, len(what.decode)
        if not what.chunks:
            with stage("pack", self._device):
                packed = self._pack_decode(what.decode, bucket_for(n_decode))
            with stage("decode", self._device):
                inputs, logits = self._graphs.run(packed)
            shares = [(i, i, share) for i, share in enumerate(what.decode) if share.samples]
        elif (tokens := self._bucket_of_prompts(what)) is not None and not few_layers:
            with stage("pack", self._device):
                packed = self._pack_prompts(what.chunks, tokens)
            with stage("prompts", self._device):
                inputs, logits = self._graphs.run(packed)
            shares = _placed([share for share in what.chunks if share.samples], packed)
        else:
            with stage("pack", self._device):
                packed = pack_mixed(
                    what, self._places,
                    windows=self._model.windows,
                    block_tokens=self._model.chunks.config.block_tokens,
                    table_pages=self._table_pages, page_tokens=page_tokens, pinned=self._pinned,
                )  # fmt: skip
            with stage("mixed", self._device):
                inputs = DeviceInputs(packed.shape, self._device)
                inputs.load(packed)
                logits = self._model.forward(inputs, n_decode, few_layers=few_layers)
                if len(logits):
                    self._sampler.draw(logits, inputs, self._fresh)
            shares = _placed([share for share in what.all if share.samples], packed)
        rows = [Sampled(share.work, i, place) for i, place, share in shares]
        return inputs, logits, rows, [share.nth for _, _, share in shares]

    def _pack_decode(self, rows: list[Share], bucket: int) -> HostInputs:
        return pack_decode(
            rows, bucket, self._places,
            table_pages=self._table_pages, page_tokens=self.spec.page_tokens, pinned=self._pinned,
        )  # fmt: skip

    def _bucket_of_prompts(self, what: Pass) -> int | None:
        """The bucket of a pass that runs as a graph of prompts; None for other passes."""
        if what.decode or len(what.chunks) > PROMPTS:
            return None
        tokens = sum(share.n_new for share in what.chunks)
        return prompt_bucket_for(tokens, self.graphed_tokens, exact=self._exact)

    def _pack_prompts(self, chunks: list[Share], tokens: int) -> HostInputs:
        return pack_prompts(
            chunks, tokens,
            windows=self._model.windows, block_tokens=self._model.chunks.config.block_tokens,
            table_pages=self._table_pages, page_tokens=self.spec.page_tokens, pinned=self._pinned,
        )  # fmt: skip

    def _forward(self, inputs: DeviceInputs, *, few_layers: bool = False) -> torch.Tensor:
        """A pass of decode rows, or of prompts."""
        n_decode = 0 if inputs.shape.tiles else inputs.shape.rows
        logits = self._model.forward(inputs, n_decode, few_layers=few_layers)
        self._sampler.draw(logits, inputs, self._fresh)
        return logits

    def _collect(self, sampled: list[Sampled], target: torch.Tensor) -> None:
        """Copy what a pass has sampled, `[2, n]`."""
        n = len(sampled)
        if sampled[-1].row == n - 1:
            target.copy_(self._fresh_bits[:, :n])
        else:
            rows = upload([row.row for row in sampled], np.int64, self._device)
            target.copy_(self._fresh_bits.index_select(1, rows))

    def _likeliest(
        self, logits: torch.Tensor, listed: list[Sampled]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = upload([row.row for row in listed], np.int64, self._device)
        logprobs = torch.log_softmax(logits.index_select(0, rows).float(), -1)
        most = max(row.work.params.top_logprobs or 0 for row in listed)
        return likeliest(logprobs, min(most, self.spec.vocab_size))

    def _tables(self, tops: list[tuple[torch.Tensor, torch.Tensor]]) -> TopTables | None:
        if not tops:
            return None
        width = max(ids.shape[1] for ids, _ in tops)
        padded = [
            [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in pair]
            for pair in tops
        ]
        ids, values = (torch.cat([pair[k] for pair in padded]) for k in (0, 1))
        return TopTables(self._to_host(ids), self._to_host(values))

    def _to_host(self, source: torch.Tensor) -> torch.Tensor:
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=self._pinned)
        return host.copy_(source, non_blocking=True)

    def _error_of(self, row: RowWork) -> str:
        if row.follows and row.row not in self._places:
            return "the row's previous step failed"
        return row_error(row, self.spec) or (
            self._sampler.parameter_error(row) if row.sample else ""
        )

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield


def _only_replays(row: RowWork) -> bool:
    is_answer = row.n_new == 1 and row.start >= row.n_prompt
    return is_answer and not row.params.top_logprobs and is_plain(row)


def _placed(sampled: list[Share], packed: HostInputs) -> list[tuple[int, int, Share]]:
    """(row in the logits, place in the pass's tokens, share) of the rows that sample."""
    places: list[int] = packed["wanted"].tolist()
    return [(i, places[i], share) for i, share in enumerate(sampled)]
