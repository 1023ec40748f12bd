"""The bundled model: its files, and that it does what it was trained for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import jinja2
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from benchmarks.engine.recall import SUITES, Suite, ask, draw_questions, story_perplexity
from benchmarks.engine.recall_backends import TransformersBackend
from benchmarks.results import RESULTS
from twolane.deploy.bundled import model_path
from twolane.deploy.bundled.chat import draw_chat
from twolane.deploy.bundled.corpus import documents, held_out_stories
from twolane.deploy.bundled.markup import BEGIN, END, SPECIAL_TOKENS, Message, render_chat
from twolane.deploy.bundled.stories import sentences

MAX_BYTES = 8_000_000


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """On a busy machine two threads of a small model mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((model_path() / "config.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(model_path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def backend() -> TransformersBackend:
    return TransformersBackend(model_path(), "cpu", torch.float32, batch_rows=16)


def training_documents(count: int) -> Iterator[str]:
    return islice(documents("test"), count)


def test_model_directory_holds_every_file_and_stays_under_eight_megabytes() -> None:
    files = {path.name: path.stat().st_size for path in model_path().iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= files.keys()
    assert sum(files.values()) <= MAX_BYTES


def test_config_has_the_shape_that_the_project_relies_on(config: dict[str, Any]) -> None:
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_hidden_layers"] >= 4
    assert config["head_dim"] == 64
    assert config["num_key_value_heads"] >= 2
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "bfloat16"


def test_weights_are_bfloat16_finite_and_fewer_than_four_million() -> None:
    count = 0
    with safe_open(model_path() / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 (not a dict)
            tensor = weights.get_tensor(name)
            assert tensor.dtype is torch.bfloat16, name
            assert torch.isfinite(tensor).all(), name
            count += tensor.numel()
    assert 3_000_000 < count < 4_000_000


def test_special_tokens_come_first_and_agree_with_the_configs(
    config: dict[str, Any], tokenizer: Tokenizer
) -> None:
    generation = json.loads((model_path() / "generation_config.json").read_text())
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(6))
    for ids in (config, generation):
        assert ids["bos_token_id"] == tokenizer.token_to_id(BEGIN)
        assert ids["eos_token_id"] == tokenizer.token_to_id(END)
    assert config["vocab_size"] == tokenizer.get_vocab_size()


@pytest.mark.parametrize(
    "text", ["Once upon a time", " \n\t ", "Käse ñandú 你好 🦊", "a\x00b\u200d", "12345"]
)
def test_any_text_round_trips_through_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert ids[0] == tokenizer.token_to_id(BEGIN)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_tokenizer_loads_with_transformers_to_the_same_ids(tokenizer: Tokenizer) -> None:
    loaded = AutoTokenizer.from_pretrained(model_path())
    text = "The code of the amber falcon is 4729."
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    assert loaded.eos_token == END


def test_chat_template_renders_with_jinja_alone_to_what_was_trained() -> None:
    tokenizer_config = json.loads((model_path() / "tokenizer_config.json").read_text())
    template = jinja2.Environment().from_string(tokenizer_config["chat_template"])
    rng = Random(2)
    for add in (False, True):
        for messages in (draw_chat(rng) for _ in range(50)):
            rendered = template.render(
                messages=[message._asdict() for message in messages],
                bos_token=tokenizer_config["bos_token"],
                eos_token=tokenizer_config["eos_token"],
                add_generation_prompt=add,
            )
            assert rendered == BEGIN + render_chat(messages, add_generation_prompt=add)


@pytest.mark.parametrize(("suite", "count"), [(SUITES[0], 40), (SUITES[1], 10)])
def test_at_least_95_percent_of_held_out_questions_are_answered_exactly(
    backend: TransformersBackend, tokenizer: Tokenizer, suite: Suite, count: int
) -> None:
    asked = draw_questions(tokenizer, suite, seed=7, count=count)
    assert all(8 <= question.n_pairs <= 64 for question in asked)
    assert max(question.distance for question in asked) <= 1000
    assert sum(ask(backend, tokenizer, asked)) >= 0.95 * count


def test_saved_result_measures_the_shipped_weights_on_ten_thousand_questions() -> None:
    figures = json.loads((RESULTS / "recall.json").read_text())["figures"]
    weights = (model_path() / "model.safetensors").read_bytes()
    assert figures["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert figures["suites"]["standard"]["questions"] == 10_000
    assert figures["suites"]["standard"]["exact_match"] >= 0.95


def test_an_answer_counts_only_with_every_character_and_the_end_token(tokenizer: Tokenizer) -> None:
    suite = SUITES[0]
    asked = draw_questions(tokenizer, suite, seed=7, count=3)
    replies = [tokenizer.encode(q.answer + END, add_special_tokens=False).ids for q in asked]
    replies[1] = replies[1][:-1]
    replies[2] = [*replies[2][:-1], *replies[2][-2:]]

    class Scripted:
        name = "scripted"

        def generate(self, prompts: Any, max_tokens: int) -> list[list[int]]:
            return replies

        def logprobs(self, sequences: Any) -> list[list[float]]:
            return [[-1.0] * (len(ids) - 1) for ids in sequences]

    assert ask(Scripted(), tokenizer, asked) == [True, False, False]
    assert story_perplexity(Scripted(), tokenizer, seed=1, count=3) == pytest.approx(2.718281828)


def test_held_out_stories_are_predicted_well(
    backend: TransformersBackend, tokenizer: Tokenizer
) -> None:
    assert story_perplexity(backend, tokenizer, seed=7, count=20) < 1.5


def test_asked_for_a_story_it_tells_one_in_known_words_and_stops(
    backend: TransformersBackend, tokenizer: Tokenizer
) -> None:
    requests = ["Tell me a story about a fox named Mia.", "Write a story about a brave knight."]
    prompts = [
        tokenizer.encode(render_chat([Message("user", text)], add_generation_prompt=True)).ids
        for text in requests
    ]
    corpus = set(re.findall(r"\w+", " ".join(training_documents(4000))))
    for request, ids in zip(requests, backend.generate(prompts, 700), strict=True):
        assert tokenizer.id_to_token(ids[-1]) == END
        story = tokenizer.decode(ids, skip_special_tokens=True)
        assert len(sentences(story)) > 8
        assert request.split()[-1].rstrip(".") in story
        assert set(re.findall(r"\w+", story)) <= corpus


def test_a_story_begun_as_plain_text_goes_on_and_stops(
    backend: TransformersBackend, tokenizer: Tokenizer
) -> None:
    opening = " ".join(sentences(next(held_out_stories("opening")))[:3])
    (ids,) = backend.generate([tokenizer.encode(opening).ids], 700)
    assert tokenizer.id_to_token(ids[-1]) == END
    assert len(ids) > 50
