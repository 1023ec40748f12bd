"""Backends of the recall benchmark: the protocol, and transformers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from twolane.engine.model_files.fp8 import Fp8Rows


class Backend(Protocol):
    """The interface that the benchmark needs."""

    name: str

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The greedy continuation of each prompt, at most `max_tokens`, end token included."""
        ...

    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability (nats) of each token but the first, given those before it."""
        ...


class RoundedCache(DynamicCache):  # type: ignore[misc]  # transformers has no types
    """Rounds keys and values to FP8 like an FP8 pool: with one scale per token and head."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rounded = []
        for states in (key_states, value_states):
            rows = Fp8Rows.empty(states[..., 0].numel(), states.shape[-1], device=states.device)
            rows.copy_(states.reshape(rows.shape))
            rounded.append(rows.dequantise(states.dtype).view(states.shape))
        both: tuple[torch.Tensor, torch.Tensor] = super().update(*rounded, *args, **kwargs)
        return both


class TransformersBackend:
    """Hugging Face transformers on `device`, with batches padded to the longest prompt. With
    `fp8_kv`, its KV cache is rounded to FP8."""

    def __init__(
        self,
        directory: Path,
        device: str,
        dtype: torch.dtype,
        batch_rows: int,
        *,
        fp8_kv: bool = False,
    ) -> None:
        self.name = f"transformers {dtype} on {device}".replace("torch.", "")
        self.name += ", kv rounded to fp8" * fp8_kv
        self.cache = RoundedCache if fp8_kv else DynamicCache
        self.batch_rows = batch_rows
        self.model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).to(device)
        self.model.eval()
        self.pad = int(self.model.config.pad_token_id)
        self.end = int(self.model.config.eos_token_id)

    def _batches(self, sequences: Sequence[Sequence[int]]) -> Iterable[list[int]]:
        """Indices of `sequences`, grouped by similar length."""
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        return [order[at : at + self.batch_rows] for at in range(0, len(order), self.batch_rows)]

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """See `Backend`; rows are padded on the left."""
        answers: list[list[int]] = [[] for _ in prompts]
        for batch in self._batches(prompts):
            width = max(len(prompts[index]) for index in batch)
            rows = [[self.pad] * (width - len(prompts[i])) + list(prompts[i]) for i in batch]
            mask = [[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in batch]
            output = self.model.generate(
                input_ids=torch.tensor(rows, device=self.model.device),
                attention_mask=torch.tensor(mask, device=self.model.device),
                max_new_tokens=max_tokens,
                do_sample=False,
                past_key_values=self.cache(),
            )
            for index, row in zip(batch, output[:, width:].tolist(), strict=True):
                stop = row.index(self.end) + 1 if self.end in row else len(row)
                answers[index] = row[:stop]
        return answers

    @torch.inference_mode()
    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Backend`; rows are padded on the right, so that no real token sees the padding."""
        results: list[list[float]] = [[] for _ in sequences]
        for batch in self._batches(sequences):
            width = max(len(sequences[index]) for index in batch)
            rows = [list(sequences[i]) + [self.pad] * (width - len(sequences[i])) for i in batch]
            tokens = torch.tensor(rows, device=self.model.device)
            logits = (
                self.model(input_ids=tokens, use_cache=True, past_key_values=self.cache())
                .logits[:, :-1]
                .float()
            )
            chosen = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
            for index, values in zip(batch, chosen.tolist(), strict=True):
                results[index] = values[: len(sequences[index]) - 1]
        return results
