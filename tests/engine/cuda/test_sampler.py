"""The sampler on the device draws what the CPU's draws."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from twolane.engine.cpu.logits import log_softmax, top_tokens
from twolane.engine.cpu.sampler import Sampler
from twolane.engine.cuda.inputs import DeviceInputs, InputShape
from twolane.engine.cuda.sampler import DeviceSampler, Fresh, Sampled, likeliest
from twolane.engine.step import Page, RowWork, SampledToken
from twolane.params import SamplingParams


def drawn(logits: torch.Tensor, works: list[RowWork]) -> list[int]:
    """The tokens that the device's sampler chooses."""
    n, vocab = logits.shape
    inputs = DeviceInputs(InputShape(n, n, n, 1), logits.device)
    for i, work in enumerate(works):
        inputs.temperatures[i] = work.params.temperature
        inputs.seeds[i] = work.params.seed or 0
        inputs.index[i] = work.n_tokens - work.n_prompt
    fresh = Fresh(torch.zeros(n, dtype=torch.int32), torch.zeros(n))
    sampler = DeviceSampler(vocab, (), exact=False)
    sampler.draw(logits, inputs, fresh)
    sampler.refine(logits, inputs, fresh, [Sampled(work, i, i) for i, work in enumerate(works)])
    tokens: list[int] = fresh.tokens.tolist()
    return tokens


@pytest.mark.parametrize("top_p", [0.1, 0.3, 0.6, 0.7])
def test_top_p_keeps_no_token_more_of_equal_ones(top_p: float) -> None:
    logits = torch.zeros(24, 10)
    works = [
        RowWork(seed, [1], 0, 1, [Page(0)], 1, SamplingParams(top_p=top_p, seed=seed), True)
        for seed in range(len(logits))
    ]
    expected = Sampler(10, ()).sample(logits, works)
    found = drawn(logits, works)
    assert found == [each.token for each in expected if isinstance(each, SampledToken)]
    assert max(found) < round(10 * top_p), "equal tokens of lower ids are kept first"


@pytest.mark.parametrize("n", [1, 5, 50])
def test_the_likeliest_are_those_of_the_cpu_where_logits_tie(n: int) -> None:
    """As logits of bfloat16 often do. A token that is banned has no finite one."""
    torch.manual_seed(n)
    logits = torch.randn(4, 50).bfloat16().float().round()
    logits[1] = 0.0
    logits[2, :47] = -torch.inf
    logprobs = torch.stack([torch.from_numpy(log_softmax(row.numpy())) for row in logits])
    ids, values = likeliest(logprobs, n)
    for row in range(len(logits)):
        found = tuple(zip(ids[row].tolist(), values[row].tolist(), strict=True))
        assert found == top_tokens(logprobs[row].numpy(), n)
