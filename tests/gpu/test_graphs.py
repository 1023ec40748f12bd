"""Captures of passes, while other threads go on."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.cuda.graphs import PassGraphs
from twolane.engine.cuda.inputs import DeviceInputs, HostInputs, InputShape

pytestmark = pytest.mark.gpu


def test_another_thread_may_drop_pinned_memory_amid_a_capture() -> None:
    """As it does with the results of the step before, which the same stream has written."""
    device = torch.device("cuda")
    held = [torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True)]
    n_calls = 0

    def forward(inputs: DeviceInputs, *, few_layers: bool = False) -> torch.Tensor:
        nonlocal n_calls
        n_calls += 1
        assert few_layers == (n_calls == 1)
        if n_calls == 2:  # the capture
            other.submit(held.clear).result()
        return inputs.ids + 1

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with ThreadPoolExecutor(max_workers=1) as other, torch.cuda.stream(stream):
        held[0].copy_(torch.ones(1 << 16, dtype=torch.uint8, device=device), non_blocking=True)
        graphs = PassGraphs(forward, device, has_graphs=True)
        for n in (0, 7):
            host = HostInputs(InputShape(4, 4, 4, 1), pinned=True)
            host.block.zero_()
            host["ids"][:] = n
            _, out = graphs.run(host)
            assert out.tolist() == [n + 1] * 4
        assert n_calls == 2, "the second run replays"
        torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True)  # looks at what was recorded
    graphs.close()
