"""Samples a token for each row without a sort and without the host: greedy, or by Gumbel noise.

Bytes: the logits once (vocab * itemsize per row), and a few KiB of partial results. The noise of
token t is a function of (seed, sample index, index in the answer, t): Philox4x32-10, bit for bit as
in `twolane.engine.cpu.philox`, four tokens per counter. Idea: the Gumbel-max trick with a
counter-based RNG (FlashInfer).

    block of tokens     highest, first id of it; highest + noise, first id; sum of exp
    row                 merged in the order of the blocks: ties go to the lowest id

A row's bits depend only on that row.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.sizes import cdiv, next_power_of_2

BLOCK = 4096
NOT_FINITE = -1  # in `tokens`, for a row with NaN, +inf or no finite logit


@triton.jit
def _noise(token_group, seed, sample_index, position):
    """Gumbel noise of the tokens 4 * group .. + 3, `[4 * groups]` float32."""
    a, b, c, d = tl.philox(seed, token_group, position, sample_index, 0)
    bits = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    u = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
    return -tl.log(-tl.log(u))


@triton.jit
def _first_of(values, ids, highest):
    """The lowest id whose value is the highest."""
    return tl.min(tl.where(values == highest, ids, 2147483647), 0)


@triton.jit
def _block_kernel(
    logits,
    temperatures,
    seeds,
    sample_indexes,
    positions,
    floats,
    ints,
    vocab,
    stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PDL: tl.constexpr,
):
    ready(PDL)
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    keep = token < vocab
    x = tl.load(logits + row * stride + token, mask=keep, other=float("-inf")).to(tl.float32)
    # NaN and +inf fail the row; -inf is a banned token.
    broken = tl.max((keep & ((x != x) | (x == float("inf")))).to(tl.int32), 0)
    x = tl.where((x != x) | (x == float("inf")), float("-inf"), x)
    highest = tl.max(x, 0)
    level = tl.where(highest == float("-inf"), 0.0, highest)
    first = _first_of(x, token, highest)
    mass = tl.sum(tl.exp(x - level), 0)
    temperature = tl.load(temperatures + row)
    drawn = level
    drawn_id = first
    if temperature > 0:
        group = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        noise = _noise(
            group,
            tl.load(seeds + row),
            tl.load(sample_indexes + row),
            tl.load(positions + row),
        )
        noisy = (x - level) / tl.maximum(temperature, 1e-30) + noise
        drawn = tl.max(noisy, 0)
        drawn_id = _first_of(noisy, token, drawn)
    at = row * BLOCKS + block
    n = tl.num_programs(0).to(tl.int64) * BLOCKS
    tl.store(floats + at, highest)
    tl.store(floats + n + at, drawn)
    tl.store(floats + 2 * n + at, mass)
    tl.store(ints + at, first)
    tl.store(ints + n + at, drawn_id)
    tl.store(ints + 2 * n + at, broken)


@triton.jit
def _row_kernel(
    logits,
    temperatures,
    floats,
    ints,
    tokens,
    logprobs,
    stride,
    BLOCKS: tl.constexpr,
    BLOCKS_PAD: tl.constexpr,
    NOT_FINITE: tl.constexpr,
    PDL: tl.constexpr,
):
    ready(PDL)
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS_PAD)
    keep = block < BLOCKS
    at = row * BLOCKS + block
    n = tl.num_programs(0).to(tl.int64) * BLOCKS
    highest = tl.load(floats + at, mask=keep, other=float("-inf"))
    drawn = tl.load(floats + n + at, mask=keep, other=float("-inf"))
    mass = tl.load(floats + 2 * n + at, mask=keep, other=0.0)
    first = tl.load(ints + at, mask=keep, other=2147483647)
    drawn_id = tl.load(ints + n + at, mask=keep, other=2147483647)
    broken = tl.max(tl.load(ints + 2 * n + at, mask=keep, other=0), 0)
    peak = tl.max(highest, 0)
    level = tl.where(peak == float("-inf"), 0.0, peak)
    token = _first_of(highest, first, peak)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        total = (highest - level) / tl.maximum(temperature, 1e-30) + drawn
        total = tl.where(highest == float("-inf"), float("-inf"), total)
        token = _first_of(total, drawn_id, tl.max(total, 0))
    failed = (broken > 0) | (peak == float("-inf"))
    mass = tl.where(highest == float("-inf"), 0.0, mass * tl.exp(highest - level))
    chosen = tl.load(logits + row * stride + tl.where(failed, 0, token)).to(tl.float32)
    tl.store(tokens + row, tl.where(failed, NOT_FINITE, token))
    mass = tl.where(failed, 1.0, tl.sum(mass, 0))
    tl.store(logprobs + row, tl.where(failed, 0.0, chosen - level - tl.log(mass)))


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    sample_indexes: torch.Tensor,
    positions: torch.Tensor,
    *,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    pdl: int = 0,
) -> None:
    """logits `[n, vocab]` of any float dtype (rows may be strided), -inf for banned tokens.

    `temperatures` [n] float32, 0 for greedy; `seeds` [n] int64 (all 64 bits); `sample_indexes` and
    `positions` [n] int32, position = index in the answer. Writes `tokens` [n] int32 and `logprobs`
    [n] float32 (of the chosen token, before temperature). A row with NaN or +inf, or with only
    -inf, gets the token -1; other rows are not affected.
    """
    n, vocab = logits.shape
    assert logits.stride(1) == 1
    assert seeds.dtype == torch.int64
    assert sample_indexes.dtype == positions.dtype == tokens.dtype == torch.int32
    assert temperatures.dtype == logprobs.dtype == torch.float32
    blocks = cdiv(vocab, BLOCK)
    floats = torch.empty(3 * n * blocks, dtype=torch.float32, device=logits.device)
    ints = torch.empty(3 * n * blocks, dtype=torch.int32, device=logits.device)
    launch(_block_kernel, (n, blocks))(
        logits,
        temperatures,
        seeds,
        sample_indexes,
        positions,
        floats,
        ints,
        vocab,
        logits.stride(0),
        BLOCK=BLOCK,
        BLOCKS=blocks,
        PDL=pdl,
        num_warps=8,
        launch_pdl=pdl,
    )
    launch(_row_kernel, (n,))(
        logits,
        temperatures,
        floats,
        ints,
        tokens,
        logprobs,
        logits.stride(0),
        BLOCKS=blocks,
        BLOCKS_PAD=next_power_of_2(blocks),
        NOT_FINITE=NOT_FINITE,
        PDL=pdl,
        num_warps=1,
        launch_pdl=pdl,
    )
