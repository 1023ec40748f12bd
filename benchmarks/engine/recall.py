"""Recall accuracy of a model: exact answers to seeded prompts, and perplexity on held-out stories.

`python -m benchmarks.engine.recall` measures the bundled model and saves
benchmarks/results/recall.json. No key of a prompt (hence no pair) and no story occurs in training
(`twolane.deploy.bundled`). An answer counts if every character is right and the end token follows.
The distance of a question is the number of tokens from the first token of its pair's line to the
end of the prompt.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.engine.recall_backends import Backend, TransformersBackend
from benchmarks.engine.recall_engine import EngineBackend
from benchmarks.result_options import add_result_options
from benchmarks.results import RESULTS, save
from twolane.deploy.bundled import model_path
from twolane.deploy.bundled.corpus import held_out_stories
from twolane.deploy.bundled.markup import END
from twolane.deploy.bundled.records import recall_prompt
from twolane.deploy.bundled.stories import Split
from twolane.engine.config import EngineConfig
from twolane.engine.errors import EngineError

CONTEXT_TOKENS = 4096
MAX_ANSWER_TOKENS = 16
STORIES = 1_000
KV_BYTES = 2 << 30  # the size of our own engine's pool


@dataclass(frozen=True, slots=True)
class Suite:
    """One kind of prompt. Limits are the upper ends of the reported buckets."""

    name: str
    questions: int
    min_pairs: int
    pair_limits: tuple[int, ...]
    distance_limits: tuple[int, ...]  # tokens
    max_chars: int  # of a distance; a little more than its last limit
    in_chat: bool = False


STANDARD_LIMITS = (64, 128, 256, 512, 768, 1000)
SUITES = (
    Suite("standard", 10_000, 8, (15, 31, 47, 64), STANDARD_LIMITS, 3200),
    Suite("chat", 500, 8, (15, 31, 47, 64), STANDARD_LIMITS, 3200, in_chat=True),
    Suite("long", 250, 64, (127, 191, 256), (1000, 2000, 3000, 3800), 12_000),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt in tokens, and what is counted about it."""

    tokens: tuple[int, ...]
    answer: str
    style: str
    n_pairs: int
    distance: int


def draw_questions(tokenizer: Tokenizer, suite: Suite, seed: int, count: int) -> list[Question]:
    """The first `count` questions of `suite` with `seed`, all with held-out keys."""
    found: list[Question] = []
    rng = Random(f"recall:{suite.name}:{seed}")
    while len(found) < count:
        n_pairs = rng.randint(suite.min_pairs, suite.pair_limits[-1])
        prompt = recall_prompt(rng, Split.HELD_OUT, n_pairs, suite.max_chars, in_chat=suite.in_chat)
        encoding = tokenizer.encode(prompt.text)
        distance = sum(end > prompt.pair_start for _, end in encoding.offsets)
        fits = len(encoding.ids) + MAX_ANSWER_TOKENS <= CONTEXT_TOKENS
        if fits and distance <= suite.distance_limits[-1]:
            tokens = tuple(encoding.ids)
            found.append(Question(tokens, prompt.answer, prompt.style, n_pairs, distance))
    return found


def ask(backend: Backend, tokenizer: Tokenizer, asked: Sequence[Question]) -> list[bool]:
    """Whether each question was answered exactly, end token included."""
    answers = backend.generate([question.tokens for question in asked], MAX_ANSWER_TOKENS)
    return [
        tokenizer.decode(answer, skip_special_tokens=False) == question.answer + END
        for question, answer in zip(asked, answers, strict=True)
    ]


def story_perplexity(backend: Backend, tokenizer: Tokenizer, seed: int, count: int) -> float:
    """Perplexity per token over `count` held-out stories, end tokens included."""
    stories = islice(held_out_stories(f"perplexity:{seed}"), count)
    logprobs = backend.logprobs([tokenizer.encode(story).ids for story in stories])
    return math.exp(-sum(map(sum, logprobs)) / sum(map(len, logprobs)))


def _bucket(value: int, limits: Sequence[int], first: int) -> str:
    """The name of the bucket of `value`, as "low-high"."""
    high = next(limit for limit in limits if value <= limit)
    position = limits.index(high)
    return f"{limits[position - 1] + 1 if position else first}-{high}"


Marks = dict[str, dict[str, dict[str, float]]]


def tally(suite: Suite, asked: Sequence[Question], right: Sequence[bool]) -> Marks:
    """Exact match and number of questions by distance, pairs, both, and style; in bucket order."""
    groups: dict[str, dict[str, list[bool]]] = {}
    ordered = sorted(zip(asked, right, strict=True), key=lambda it: (it[0].distance, it[0].n_pairs))
    for question, is_right in ordered:
        distance = _bucket(question.distance, suite.distance_limits, 1)
        pairs = _bucket(question.n_pairs, suite.pair_limits, suite.min_pairs)
        names = {
            "distance_tokens": distance,
            "pairs": pairs,
            "distance_tokens x pairs": f"{distance} x {pairs}",
            "style": question.style,
        }
        for group, name in names.items():
            groups.setdefault(group, {}).setdefault(name, []).append(is_right)
    return {
        group: {
            name: {"exact_match": sum(marks) / len(marks), "questions": len(marks)}
            for name, marks in named.items()
        }
        for group, named in groups.items()
    }


def print_table(groups: Marks) -> None:
    """Exact match in per cent: one line per distance, one column per number of pairs."""
    cells = groups["distance_tokens x pairs"]
    columns = sorted(groups["pairs"], key=lambda name: int(name.split("-")[0]))
    print("distance  " + "".join(f"{name + ' pairs':>15}" for name in columns) + f"{'all':>9}")
    for distance, everything in groups["distance_tokens"].items():
        found = [cells.get(f"{distance} x {name}") for name in columns]
        line = "".join(f"{cell['exact_match']:15.2%}" if cell else " " * 15 for cell in found)
        print(f"{distance:10}{line}{everything['exact_match']:9.2%}")


def measure(backend: Backend, tokenizer: Tokenizer, seed: int, share: float) -> dict[str, Any]:
    """The figures of every suite, `share` of its questions asked, and of as many stories."""
    suites: dict[str, Any] = {}
    for suite in SUITES:
        asked = draw_questions(tokenizer, suite, seed, max(1, round(suite.questions * share)))
        print(f"\n{suite.name}: asking {len(asked)} questions", flush=True)
        right = ask(backend, tokenizer, asked)
        exact_match = sum(right) / len(right)
        groups = tally(suite, asked, right)
        suites[suite.name] = {"questions": len(asked), "exact_match": exact_match, "by": groups}
        print(f"{suite.name}: {exact_match:.2%} of {len(asked)} questions answered exactly")
        print_table(groups)
    stories = max(1, round(STORIES * share))
    print(f"\nreading {stories} held-out stories", flush=True)
    perplexity = story_perplexity(backend, tokenizer, seed, stories)
    print(f"perplexity on {stories} held-out stories: {perplexity:.4f}")
    return {"suites": suites, "stories": stories, "story_perplexity": perplexity}


def _backend(given: argparse.Namespace, tokenizer: Tokenizer) -> Backend:
    if given.backend == "transformers":
        dtype, fp8_kv = getattr(torch, given.dtype), given.kv_dtype == "fp8"
        return TransformersBackend(given.model, given.device, dtype, given.batch, fp8_kv=fp8_kv)
    config = EngineConfig(
        model_dir=given.model, device=given.device, dtype=given.dtype, exact=False,
        kv_bytes=KV_BYTES, weights=given.weights, kv_dtype=given.kv_dtype,
        threads=torch.get_num_threads(),
    )  # fmt: skip
    end = tokenizer.token_to_id(END)
    assert end is not None, f"the tokenizer does not know {END}"
    return EngineBackend(config, given.batch, end)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure recall and perplexity of a model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", type=Path, default=model_path(), help="its directory")
    parser.add_argument("--share", type=float, default=1.0, help="part of the questions to ask")
    parser.add_argument("--seed", type=int, default=1, help="of questions and stories")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device, help="to compute on")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="to compute in"
    )
    parser.add_argument("--batch", type=int, default=32, help="rows of one batch")
    parser.add_argument("--name", default="recall", help="the result is saved as NAME.json")
    add_result_options(parser)
    parser.add_argument(
        "--backend", choices=("transformers", "engine"), default="transformers",
        help="transformers, or our own engine",
    )  # fmt: skip
    parser.add_argument(
        "--weights", choices=("auto", "fp8"), default="auto", help="with --backend engine"
    )
    parser.add_argument(
        "--kv-dtype", choices=("auto", "fp8"), default="auto",
        help="fp8: in FP8 pages or, by transformers, rounded as they would be",
    )  # fmt: skip
    given = parser.parse_args()
    if not 0 < given.share <= 1:
        parser.error(f"--share {given.share}: more than 0, at most 1")
    if given.batch < 1:
        parser.error(f"--batch {given.batch}: at least 1")
    for name in ("tokenizer.json", "model.safetensors"):
        if not (given.model / name).is_file():
            parser.error(f"--model {given.model}: no {name} there")
    if given.weights == "fp8" and given.backend != "engine":
        parser.error("--weights fp8 needs --backend engine")
    if given.share < 1 and (given.name, given.folder) == ("recall", RESULTS):
        parser.error("a part of the questions would replace the saved result: give another --name")
    return given


def main() -> None:
    """Parse the command line, measure, print, save."""
    given = _options()
    tokenizer = Tokenizer.from_file(str(given.model / "tokenizer.json"))
    try:
        backend = _backend(given, tokenizer)
    except EngineError as error:
        raise SystemExit(f"error: {error}") from error
    weights = (given.model / "model.safetensors").read_bytes()
    started_s = time.monotonic()
    figures = {
        "backend": backend.name,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "seed": given.seed,
        **measure(backend, tokenizer, given.seed, given.share),
        "elapsed_s": round(time.monotonic() - started_s, 1),
    }
    print(save(given.name, figures, folder=given.folder, commit=given.commit))


if __name__ == "__main__":
    main()
