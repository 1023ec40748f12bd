"""What `benchmarks.engine.steps` measures: a model's sizes, points with their minimum times, and
rows that drive an engine as a worker does, with pipelined steps.

roofline = sum over products and attentions of max(bytes / read rate, operations / matmul rate)

Bytes are counted as stored (FP8 or not), and products of FP8 weights use FP8's matmul rate.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from twolane.engine.step import Engine, EngineSpec, Page, RowResult, RowWork, Step
from twolane.params import SamplingParams

VLLM_CARD = "NVIDIA H200"
PAGE_TOKENS, STEP_TOKENS, DECODE_STEPS = 64, 8192, 60
GREEDY = SamplingParams(temperature=0.0, max_tokens=1 << 20, ignore_eos=True)


def has_vllms_card() -> bool:
    """Whether this GPU is of the kind on which vLLM was measured: no other is compared with it."""
    return torch.cuda.is_available() and torch.cuda.get_device_name() == VLLM_CARD


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-like model's sizes."""

    layers: int
    hidden: int
    wide: int
    heads: int
    kv_heads: int = 8
    dim: int = 128
    vocab: int = 128_256

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of a layer's matrices."""
        attended, kept = self.heads * self.dim, self.kv_heads * self.dim
        return (
            (attended + 2 * kept, self.hidden), (self.hidden, attended),
            (2 * self.wide, self.hidden), (self.hidden, self.wide),
        )  # fmt: skip

    def config(self) -> dict[str, Any]:
        """As in a model directory's config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.wide,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.dim,
            "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "eos_token_id": 2,
        }


LLAMA_8B = Shape(layers=32, hidden=4096, wide=14336, heads=32)
LLAMA_70B = Shape(layers=80, hidden=8192, wide=28672, heads=64)


@dataclass(frozen=True, slots=True)
class Rates:
    """A card's measured ceilings: bytes/s read, operations/s of bf16 and of FP8 products."""

    read: float
    matmul: float
    fp8_matmul: float = float("nan")

    def of_all(self, cards: int) -> Rates:
        """The sum over that many cards."""
        return Rates(self.read * cards, self.matmul * cards, self.fp8_matmul * cards)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored in FP8, as options of EngineConfig; auto is bf16."""

    weights: str = "auto"
    kv_dtype: str = "auto"

    @property
    def suffix(self) -> str:
        """For a file name."""
        parts = (("weights", self.weights), ("kv", self.kv_dtype))
        return "".join(f"_fp8_{part}" for part, dtype in parts if dtype == "fp8")


BF16 = Stored()


@dataclass(frozen=True, slots=True)
class Point:
    """`rows` rows: with `tokens` tokens in their pages (decode), or prompts of that length
    (prefill)."""

    kind: str
    rows: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> Point:
        kind, _, size = text.partition(":")
        rows, _, tokens = size.partition("x")
        return cls(kind, int(rows), int(tokens))

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.rows}x{self.tokens}"

    @property
    def is_decode(self) -> bool:
        return self.kind == "decode"

    @property
    def row_pages(self) -> int:
        most = self.tokens + (DECODE_STEPS + 8 if self.is_decode else 0)
        return -(-most // PAGE_TOKENS)

    def roofline_s(self, rates: Rates, shape: Shape = LLAMA_8B, stored: Stored = BF16) -> float:
        """The minimum time at the card's measured rates, for a whole prefill or one step."""
        n = self.rows if self.is_decode else self.rows * self.tokens
        grown = self.tokens + DECODE_STEPS / 2  # contexts grow while they are measured
        has_fp8_weights = stored.weights == "fp8"
        kv_bytes = 1 + 4 / shape.dim if stored.kv_dtype == "fp8" else 2  # scales, too

        def product(outer: int, inner: int, m: float, *, fp8: bool = False) -> float:
            moved = (1 if fp8 else 2) * (outer * inner + m * inner) + 2 * m * outer
            return max(
                moved / rates.read,
                2 * m * outer * inner / (rates.fp8_matmul if fp8 else rates.matmul),
            )

        layer = sum(
            product(outer, inner, n, fp8=has_fp8_weights) for outer, inner in shape.products
        )
        keys = grown if self.is_decode else self.tokens
        attended = shape.heads * shape.dim
        moved = kv_bytes * self.rows * (2 * keys * shape.kv_heads * shape.dim) + 4 * n * attended
        pairs = self.rows * (grown if self.is_decode else self.tokens * (self.tokens + 1) / 2)
        attention = max(moved / rates.read, 4 * pairs * attended / rates.matmul)
        return shape.layers * (layer + attention) + product(shape.vocab, shape.hidden, self.rows)


def pages_for(points: Iterable[Point]) -> int:
    """Enough pages for each of the points, one at a time."""
    return max((point.rows * point.row_pages for point in points), default=64)


class Rows:
    """Rows with their own pages and prompts, and their work in the next step."""

    def __init__(self, point: Point, spec: EngineSpec) -> None:
        self.point = point
        n_pages = point.row_pages * PAGE_TOKENS // spec.page_tokens
        assert point.rows * n_pages <= spec.n_pages, "the pool is too small for the point"
        source = torch.Generator().manual_seed(1)
        order = torch.randperm(spec.n_pages, generator=source).tolist()
        self.pages = [
            [Page(page) for page in order[i * n_pages : (i + 1) * n_pages]]
            for i in range(point.rows)
        ]
        ids = torch.randint(3, spec.vocab_size, (point.rows, point.tokens + 1), generator=source)
        self.tokens: list[list[int]] = ids.tolist()

    def decode(self, *, ahead: bool = False) -> list[RowWork]:
        """Compute the newest known token, or with `ahead` the one that is being sampled after
        it."""
        n_prompt = self.point.tokens
        return [
            RowWork(
                i, tokens, len(tokens) - 1 + ahead, 1, pages, n_prompt, GREEDY, True, follows=ahead
            )
            for i, (tokens, pages) in enumerate(zip(self.tokens, self.pages, strict=True))
        ]

    def took(self, sampled: Sequence[int]) -> None:
        for tokens, token in zip(self.tokens, sampled, strict=True):
            tokens.append(token)

    def forget(self) -> None:
        """Drop what was sampled: contexts are as long as at first."""
        for tokens in self.tokens:
            del tokens[self.point.tokens + 1 :]

    def prefill(self) -> list[list[RowWork]]:
        """Steps of at most STEP_TOKENS, with whole rows if they fit."""
        n = self.point.tokens
        steps: list[list[RowWork]] = [[]]
        left = STEP_TOKENS
        for i, (tokens, pages) in enumerate(zip(self.tokens, self.pages, strict=True)):
            start = 0
            while start < n:
                if not left:
                    steps.append([])
                    left = STEP_TOKENS
                new = min(left, n - start)
                steps[-1].append(
                    RowWork(i, tokens[:n], start, new, pages, n, GREEDY, start + new == n)
                )
                start, left = start + new, left - new
        return steps


def decode_s(engine: Engine, rows: Rows, n_steps: int = DECODE_STEPS) -> list[float]:
    """Seconds between the results of consecutive pipelined steps, without the first few gaps, while
    the queue fills."""
    for _ in range(2):  # capture, then once more
        checked(engine.run(rows.decode()))
    gaps: list[float] = []
    before: Step = engine.submit(rows.decode())
    last = time.perf_counter()
    for _ in range(1, n_steps):
        following = engine.submit(rows.decode(ahead=True))
        rows.took(checked(before.result()))
        now = time.perf_counter()
        gaps.append(now - last)
        last, before = now, following
    before.result()
    return gaps[3:]


def prefill_s(engine: Engine, rows: Rows) -> float:
    """Seconds from the first submission to the first tokens."""
    started = time.perf_counter()
    handles: list[Step] = []
    for work in rows.prefill():
        handles.append(engine.submit(work))
        if len(handles) > 1:
            checked(handles.pop(0).result())
    checked(handles.pop().result())
    return time.perf_counter() - started


def checked(results: Sequence[RowResult]) -> list[int]:
    """The sampled tokens."""
    assert not any(result.error for result in results), results[:2]
    return [result.tokens[0].token for result in results if result.tokens]
