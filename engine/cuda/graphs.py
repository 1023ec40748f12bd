"""Passes as CUDA graphs: one per shape of inputs, captured when the shape is first used. Which
shapes there are says `twolane.engine.cuda.plans`.

    first time   load inputs -> forward of few layers, without a graph -> capture -> replay
    afterwards   load inputs -> replay

The few layers do what a capture cannot contain, such as compiling or loading a kernel.

Captures are recorded on a stream of their own. When any thread frees a pinned block, torch records
an event on the stream that used it: during a capture of that stream, the event would become part of
the graph, and the next pinned allocation would fail with "invalid argument".

A graph reads its inputs and writes its logits at fixed addresses; all graphs share one memory pool,
so logits are valid until the next replay of any graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from twolane.engine.cuda.inputs import DeviceInputs, HostInputs, InputShape


class Forward(Protocol):
    def __call__(self, inputs: DeviceInputs, *, few_layers: bool = False) -> torch.Tensor:
        """A whole pass: returns the logits, which are meaningless with `few_layers`."""
        ...


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: DeviceInputs
    graph: torch.cuda.CUDAGraph | None  # None if graphs are disabled
    logits: torch.Tensor


class PassGraphs:
    """`forward` must do the same work whenever it is called with inputs of one shape; without
    `has_graphs` it is called each time."""

    def __init__(self, forward: Forward, device: torch.device, *, has_graphs: bool) -> None:
        self._forward = forward
        self._device = device
        self._captured: dict[InputShape, _Captured] = {}
        self._has_graphs = has_graphs
        self._arena = torch.cuda.graph_pool_handle() if self._has_graphs else None
        self._captures = torch.cuda.Stream(device) if self._has_graphs else None  # type: ignore[no-untyped-call]

    def has(self, shape: InputShape) -> bool:
        """Whether `run` with inputs of that shape replays a graph."""
        found = self._captured.get(shape)
        return found is not None and found.graph is not None

    def run(self, host: HostInputs) -> tuple[DeviceInputs, torch.Tensor]:
        """Load the inputs and compute, on the current stream (not the default one)."""
        found = self._captured.get(host.shape)
        if found is None:
            return self._first(host)
        found.inputs.load(host)
        if found.graph is None:
            return found.inputs, self._forward(found.inputs)
        found.graph.replay()
        return found.inputs, found.logits

    def close(self) -> None:
        """Drop the graphs, and their memory on the device."""
        self._captured.clear()

    def _first(self, host: HostInputs) -> tuple[DeviceInputs, torch.Tensor]:
        inputs = DeviceInputs(host.shape, self._device)
        inputs.load(host)
        if not self._has_graphs:
            logits = self._forward(inputs)
            self._captured[host.shape] = _Captured(inputs, None, logits)
            return inputs, logits
        self._forward(inputs, few_layers=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._captures):
            # Other threads may use the device meanwhile: only this one is limited to what a graph
            # can contain.
            graph.capture_begin(pool=self._arena, capture_error_mode="thread_local")
            try:
                logits = self._forward(inputs)
            finally:
                graph.capture_end()
        self._captured[host.shape] = _Captured(inputs, graph, logits)
        graph.replay()
        return inputs, logits
