"""The bundled model: its files, its corpus and split, and that it does what it was trained for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from random import Random
from typing import Any

import jinja2
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from benchmarks.recall import SUITES, Suite, ask, draw_questions, story_perplexity
from benchmarks.recall_backends import TransformersBackend
from benchmarks.results import RESULTS
from deploy.bundled import model_path
from deploy.bundled.chat import draw_chat
from deploy.bundled.corpus import documents, held_out_stories
from deploy.bundled.markup import BEGIN, END, SPECIAL_TOKENS, Message, render_chat
from deploy.bundled.packing import PackedRows
from deploy.bundled.plots import PLOTS
from deploy.bundled.records import KEYS, key_split, recall_document, recall_prompt
from deploy.bundled.stories import Split, draw_plan, sentences, tell

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


def test_same_seed_tells_the_same_stories_and_another_seed_does_not() -> None:
    assert list(training_documents(50)) == list(training_documents(50))
    assert list(islice(documents("other"), 50)) != list(training_documents(50))


def test_every_plot_can_be_told_without_an_empty_slot() -> None:
    rng = Random(0)
    told: set[str] = set()
    while len(told) < len(PLOTS):
        plan = draw_plan(rng, Split.TRAIN)
        story = tell(rng, plan, episodes=2)
        assert not re.search(r"[{}]|\ba [aeio]", story), story
        told.add(plan.plot.name)


def test_held_out_keys_occur_in_no_training_document() -> None:
    assert all(key_split(key) is Split.HELD_OUT for key in KEYS[Split.HELD_OUT])
    assert not set(KEYS[Split.TRAIN]) & set(KEYS[Split.HELD_OUT])
    assert len(KEYS[Split.HELD_OUT]) > 500
    held_out = set(KEYS[Split.HELD_OUT])
    seen: set[str] = set()
    for document in training_documents(3000):
        words = re.findall(r"\w+", document.lower())
        seen |= {f"{first} {second}" for first, second in pairwise(words)}
    assert not held_out & seen
    assert len(set(KEYS[Split.TRAIN]) & seen) > 5000


def test_recall_prompts_ask_for_held_out_keys_only() -> None:
    rng = Random(3)
    for _ in range(50):
        prompt = recall_prompt(rng, Split.HELD_OUT, 16, 2000)
        assert not any(key in prompt.text for key in KEYS[Split.TRAIN])
        line = prompt.text[prompt.pair_start :].splitlines()[0]
        assert prompt.answer.strip() in line


def test_held_out_story_plans_are_disjoint_from_training_plans() -> None:
    rng = Random(5)
    plans = {split: {draw_plan(rng, split) for _ in range(2000)} for split in Split}
    assert not plans[Split.TRAIN] & plans[Split.HELD_OUT]
    assert all(plan.split is split for split in Split for plan in plans[split])


def test_a_document_cut_at_the_end_of_a_row_opens_the_next_one_whole(tokenizer: Tokenizer) -> None:
    begin = SPECIAL_TOKENS.index(BEGIN)
    rows = next(iter(PackedRows(tokenizer.to_str(), "test", rows=4, row_tokens=4097)))
    assert rows[:, 0].eq(begin).all()
    for row, following in pairwise(rows):
        cut = row[int(row.eq(begin).nonzero()[-1]) :]
        assert torch.equal(cut, following[: len(cut)])


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


@pytest.mark.parametrize(("suite", "count"), [(SUITES[0], 100), (SUITES[1], 20)])
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


def test_notes_of_a_training_document_answer_its_questions() -> None:
    document = recall_document(Random(11))
    assert document.endswith(END)
    assert document.count("Answer:") == document.count(END)
