"""What a model directory says of its tokenizer and its chat template, against transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.router.tokenizer_kinds import KINDS, random_texts, write_tokenizer
from twolane.errors import InvalidRequestError
from twolane.router.text.codec import TextCodec
from twolane.router.text.model_files import (
    ModelFilesError,
    NoTemplateError,
    chat_template,
    tokenizer_config,
)

CHAT = [{"role": "user", "content": "hello"}]
TEMPLATE = "{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ boi }}|{{ messages[0].content }}"


def load(directory: Path) -> TextCodec:
    codec = TextCodec.load(directory)
    assert codec is not None
    return codec


def reference(directory: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)


def change(directory: Path, **fields: Any) -> None:
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "-"}))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_tokenizer_json_in_transformers(kind: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, kind)
    codec, theirs = load(tmp_path), reference(tmp_path)
    for text in random_texts(200, seed=9):
        assert codec.encode(text) == theirs(text)["input_ids"], text


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_as_many_tokens_as_its_length_says_or_more(kind: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, kind)
    codec = load(tmp_path)
    for text in [*random_texts(200, seed=3), "a" * 4000, " " * 4000]:
        assert codec.least_tokens(text) <= len(codec.encode(text)), text
    is_known = kind in ("llama3", "gpt2")  # Qwen's normalizer, and byte fallback's, shorten texts
    assert (codec.least_tokens("a" * 4000) > 0) is is_known


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(
    ("kind", "name"),
    [("gpt2", "GPT2Tokenizer"), ("qwen", "Qwen2Tokenizer"), ("mistral", "LlamaTokenizer")],
)
def test_add_prefix_space_goes_before_tokenizer_json(
    kind: str, name: str, wanted: bool, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, kind, tokenizer_class=name, add_prefix_space=wanted, legacy=False)
    codec, theirs = load(tmp_path), reference(tmp_path)
    for text in ("hello there", " hello", "Once upon"):
        ours = codec.encode_rendered(text)
        assert ours == theirs(text, add_special_tokens=False)["input_ids"], text


def test_a_prefix_space_that_is_not_wanted_is_not_prepended(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, "llama2", add_prefix_space=False)
    first, *_ = load(tmp_path).encode_rendered("hello")
    piece = tokenizer.id_to_token(first)
    assert piece is not None
    assert not piece.startswith("▁")


@pytest.mark.parametrize("is_legacy", [True, False])
def test_special_tokens_map_counts_where_older_tools_wrote_it(
    is_legacy: bool, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, "llama2", chat_template=TEMPLATE, bos_token="-", eos_token="-")
    change(tmp_path, **({} if is_legacy else {"added_tokens_decoder": {}}))
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    theirs = reference(tmp_path).apply_chat_template(CHAT, tokenize=False)
    assert load(tmp_path).render_chat(CHAT) == theirs
    assert theirs.startswith("<s>|</s>|") is is_legacy


def test_a_template_knows_the_models_other_special_tokens_by_name(tmp_path: Path) -> None:
    extra = {"boi": "<start_of_turn>"}
    write_tokenizer(
        tmp_path,
        "gemma",
        chat_template=TEMPLATE,
        image_token="<end_of_turn>",
        extra_special_tokens=extra,
    )
    theirs = reference(tmp_path).apply_chat_template(CHAT, tokenize=False)
    assert load(tmp_path).render_chat(CHAT) == theirs
    assert theirs == "<bos>|<eos>|<end_of_turn>|<start_of_turn>|hello"


def test_a_template_that_is_no_text_costs_chats_alone(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "qwen")
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff{{ messages }}")
    codec = load(tmp_path)
    with pytest.raises(NoTemplateError, match=r"chat_template.jinja cannot be read as text"):
        chat_template(tmp_path, {})
    assert codec.encode("hello")


def test_json_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ModelFilesError, match="cannot be read as JSON"):
        tokenizer_config(tmp_path)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("a\n{% for m in messages %}", "line 2 of the model's chat template is wrong: .*endfor"),
        ([{"name": "rag", "template": "x"}], "its chat templates are called rag; none is the def"),
        (["rag"], "its chat templates are not objects with a name and a template"),
        ([{"name": "default"}], "its chat templates are not objects with a name and a template"),
        (7, "chat_template is int, not text"),
    ],
)
def test_a_template_that_cannot_be_used_costs_chats_alone(
    template: object, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tokenizer(tmp_path, "qwen", chat_template=template)
    with caplog.at_level(logging.WARNING):
        codec = load(tmp_path)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert codec.encode("hello")
    with pytest.raises(InvalidRequestError, match=words):
        codec.render_chat(CHAT)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses infinitely"),
        ("{{ '{x}'.format() }}", "refuses these messages"),
        ("{{ messages[0].content.index('nowhere') }}", "refuses these messages"),
    ],
)
def test_whatever_a_template_raises_is_the_clients_to_hear(
    template: str, words: str, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, "qwen", chat_template=template)
    with pytest.raises(InvalidRequestError, match=words) as caught:
        load(tmp_path).render_chat(CHAT)
    assert caught.value.field == "chat"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "{}", "tokenizer.json is not a tokenizer"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read as JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json is not a JSON object"),
    ],
)
def test_a_damaged_file_is_named(file: str, content: str, words: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "qwen")
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelFilesError, match=words):
        load(tmp_path)
