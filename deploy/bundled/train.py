"""Train the bundled model: `python -m twolane.deploy.bundled.train --out DIR --minutes N`.

1. Train the tokenizer on the corpus.
2. Train a small Llama from random weights on packed rows: Muon for the matrices, AdamW for the
   embedding and the norms, bf16 autocast over float32 weights; a constant learning rate that falls
   to zero over the second half.
3. Export: bf16 weights, configuration, tokenizer, and training.json, which says how it was made.

`--start` goes on from a model that an earlier run exported, with its tokenizer.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from twolane.deploy.bundled.markup import BEGIN, END, PAD
from twolane.deploy.bundled.packing import training_batches
from twolane.deploy.bundled.vocabulary import CONTEXT_TOKENS, save_tokenizer, train_tokenizer

VOCAB_SIZE = 2048
ROW_TOKENS = 4096
WARMUP_STEPS = 100
CLIP_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a training run. It ends after `minutes`, without compilation, or `steps`."""

    minutes: float
    steps: int
    rows: int
    seed: int
    workers: int
    matrix_lr: float = 0.02
    other_lr: float = 0.004


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """The shape of the bundled model: about 3.5 million parameters."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )


def learning_rate_share(step: int, progress: float) -> float:
    """The share of the full learning rate: linear warm-up, a plateau, then linearly to zero."""
    return min(1.0, (step + 1) / WARMUP_STEPS, 2.0 * (1.0 - progress))


def make_optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for everything else."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_lr, weight_decay=0.01),
        torch.optim.AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def next_token_loss(model: LlamaForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of each token of `rows` [rows, tokens] but the first."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


class Pace:
    """A run's clock: its progress, and a log line every few seconds.

    It starts after the first step, which compiles.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.step = 0
        self.progress = 0.0  # 1 and more: the run is over
        self.last_loss = math.nan  # mean since the line before
        self._losses = torch.zeros((), device=device)  # summed where they are, not read every step
        self._reported_step = 0
        self._started_s = self._reported_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def advance(self, loss: torch.Tensor) -> None:
        """Count one step and its loss."""
        self.step += 1
        self._losses += loss.detach()
        if self.step == 1:
            float(self._losses)  # waits for the device
            self._started_s = self._reported_s = time.monotonic()
        in_time = self.elapsed_s / (60 * self.recipe.minutes)
        self.progress = max(in_time, self.step / self.recipe.steps)
        if self.progress >= 1 or time.monotonic() - self._reported_s > 5:
            self._report()

    def _report(self) -> None:
        n_steps = self.step - self._reported_step
        self.last_loss = float(self._losses) / n_steps
        now_s = time.monotonic()
        speed = n_steps * self.recipe.rows * ROW_TOKENS / max(now_s - self._reported_s, 1e-9)
        print(
            f"{self.progress:6.1%}  step {self.step:6d}  loss {self.last_loss:6.4f}"
            f"  {speed:9.0f} tokens/s",
            flush=True,
        )
        self._reported_s, self._reported_step = now_s, self.step
        self._losses.zero_()


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, recipe: Recipe) -> dict[str, Any]:
    """Train `model` in place; returns the run's entry in training.json."""
    device = model.device
    loss_of: Callable[[LlamaForCausalLM, torch.Tensor], torch.Tensor] = next_token_loss
    if device.type == "cuda":
        loss_of = torch.compile(next_token_loss)
    optimizers = make_optimizers(model, recipe)
    full_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    pace = Pace(recipe, device)
    for batch in training_batches(
        tokenizer, str(recipe.seed), recipe.rows, ROW_TOKENS + 1, recipe.workers
    ):
        rows = batch.to(device, non_blocking=True).long()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(model, rows)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        share = learning_rate_share(pace.step, pace.progress)
        for optimizer, full_rate in zip(optimizers, full_rates, strict=True):
            optimizer.param_groups[0]["lr"] = full_rate * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        pace.advance(loss)
        if pace.progress >= 1:
            break
    return {
        **asdict(recipe),
        "steps": pace.step,
        "tokens": pace.step * recipe.rows * ROW_TOKENS,
        "training_s": round(pace.elapsed_s, 1),
        "last_loss": round(pace.last_loss, 4),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }


def beginning(
    start: Path | None, seed: str
) -> tuple[Tokenizer, LlamaForCausalLM, list[dict[str, Any]]]:
    """Tokenizer, float32 model and the runs so far: those of `start`, or all new."""
    if start is None:
        tokenizer = train_tokenizer(seed, VOCAB_SIZE)
        return tokenizer, LlamaForCausalLM(model_config(tokenizer)), []
    tokenizer = Tokenizer.from_file(str(start / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    runs = json.loads((start / "training.json").read_text(encoding="utf-8"))["runs"]
    return tokenizer, model, runs


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Write the model as bf16 in Hugging Face format; `model` is bf16 afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    model.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)


def main() -> None:
    """Parse the command line, train, export."""
    parser = argparse.ArgumentParser(description="Train twolane's bundled model.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument("--start", type=Path, help="model directory to go on from")
    parser.add_argument("--minutes", type=float, default=5.0, help="training time (default 5)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after so many steps")
    parser.add_argument("--rows", type=int, default=24, help="rows of 4,096 tokens a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=14, help="processes that make text")
    arguments = parser.parse_args()
    recipe = Recipe(
        minutes=arguments.minutes,
        steps=arguments.steps,
        rows=arguments.rows,
        seed=arguments.seed,
        workers=arguments.workers,
    )
    torch.manual_seed(recipe.seed)
    tokenizer, model, earlier = beginning(arguments.start, str(recipe.seed))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {model.device}")
    runs = [*earlier, train(model, tokenizer, recipe)]
    export(model, tokenizer, arguments.out)
    text = json.dumps({"runs": runs}, indent=2) + "\n"
    (arguments.out / "training.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
