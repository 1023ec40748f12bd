"""The sampler against the CPU's: the same tokens, from the same bits."""

import pytest

pytest.importorskip("triton")

import numpy as np
import torch
import triton
import triton.language as tl

from twolane.engine.cpu.philox import token_bits, uniform
from twolane.engine.kernels.rows import sample as kernels


@triton.jit  # type: ignore[untyped-decorator]
def _bits_kernel(seeds, out, position, sample_index, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    group = tl.arange(0, GROUPS)
    a, b, c, d = tl.philox(tl.load(seeds), group, position, sample_index, 0)
    bits = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    tl.store(out + tl.arange(0, 4 * GROUPS), bits.to(tl.int32, bitcast=True))


@pytest.mark.parametrize("seed", [0, 1, 2**31 + 5, 2**63 + 12345, 2**64 - 1])
def test_bits_are_those_of_the_cpu(seed: int) -> None:
    out = torch.empty(64, dtype=torch.int32)
    seeds = torch.from_numpy(np.array([seed], np.uint64).view(np.int64))
    _bits_kernel[(1,)](seeds, out, 1234567, 3, GROUPS=16)
    expected = token_bits(np.arange(16), seed=seed, sample_index=3, position=1234567)
    assert np.array_equal(out.numpy().view(np.uint32), expected.reshape(-1))


def expected_token(row: torch.Tensor, temperature: float, seed: int, index: int, at: int) -> int:
    """By the CPU's definition, in numpy."""
    logits = row.float().numpy()
    if temperature == 0:
        return int(np.argmax(logits))
    groups = np.arange(-(-len(logits) // 4))
    bits = token_bits(groups, seed=seed, sample_index=index, position=at).reshape(-1)
    noise = -np.log(-np.log(uniform(bits[: len(logits)])))
    return int(np.argmax((logits - logits.max()) / np.float32(temperature) + noise))


def run(
    logits: torch.Tensor, temperatures: list[float], seeds: list[int], indexes: list[int],
    positions: list[int],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    n = len(logits)
    tokens = torch.full((n,), -7, dtype=torch.int32)
    logprobs = torch.full((n,), torch.nan)
    kernels.sample(
        logits,
        torch.tensor(temperatures, dtype=torch.float32),
        torch.from_numpy(np.array(seeds, np.uint64).view(np.int64)),
        torch.tensor(indexes, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32),
        tokens=tokens,
        logprobs=logprobs,
    )
    return tokens, logprobs


@pytest.mark.parametrize("vocab", [5, 4096, 9001])
def test_tokens_are_those_of_the_cpu(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(4, vocab) * 3
    temperatures, seeds = [0.0, 0.7, 1.0, 1e-30], [1, 2**64 - 3, 9, 4]
    indexes, positions = [0, 1, 2, 3], [0, 17, 4000, 1]
    tokens, logprobs = run(logits, temperatures, seeds, indexes, positions)
    args = zip(logits, temperatures, seeds, indexes, positions, strict=True)
    assert tokens.tolist() == [expected_token(*row) for row in args]
    exact = torch.log_softmax(logits.double(), -1).gather(1, tokens.long()[:, None])[:, 0]
    assert torch.allclose(logprobs.double(), exact, atol=1e-5)


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 8200)
    logits[0, [3000, 4100, 8199]] = 5.0
    assert run(logits, [0.0], [0], [0], [0])[0].tolist() == [3000]


def test_a_broken_row_fails_alone() -> None:
    torch.manual_seed(2)
    logits = torch.randn(5, 4100)
    good = run(logits, [0.0, 1.0] * 2 + [1.0], [5] * 5, [0] * 5, [9] * 5)[0].tolist()
    logits[1, 4099], logits[2, 0], logits[3] = torch.nan, torch.inf, -torch.inf
    tokens, _ = run(logits, [0.0, 1.0] * 2 + [1.0], [5] * 5, [0] * 5, [9] * 5)
    assert tokens.tolist() == [good[0], -1, -1, -1, good[4]]


def test_banned_tokens_are_never_drawn() -> None:
    logits = torch.full((6, 4100), -torch.inf)
    logits[:, [7, 4098]] = 0.0
    tokens, logprobs = run(logits, [1.0] * 6, list(range(6)), [0] * 6, [0] * 6)
    assert set(tokens.tolist()) == {7, 4098}
    assert torch.allclose(logprobs, torch.full((6,), float(np.log(0.5))))
