"""Text against transformers' AutoTokenizer, which is the reference."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from twolane.errors import InvalidRequestError
from twolane.router.text.codec import TextCodec

TEXTS = [
    "Once upon a time",
    "hello, world!",
    " leading and trailing ",
    "日本語 and 🙂 and naïve",
    "<s> in the text</s>",
    "",
    "tabs\tand\n\nnewlines",
]
CHATS = [
    [{"role": "user", "content": "hello"}],
    [
        {"role": "system", "content": " be brief "},
        {"role": "user", "content": "tell me <b>more</b>"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "日本語?"},
    ],
]


def load(directory: Path) -> TextCodec:
    codec = TextCodec.load(directory)
    assert codec is not None
    return codec


def bundled_dir() -> Any:
    bundled = pytest.importorskip("twolane.deploy.bundled")
    path = bundled.model_path()
    if not (path / "tokenizer.json").exists():
        pytest.skip("the bundled model has not been made")
    return path


@pytest.fixture(
    params=["as it is", "bos off", "eos on", "both on", "in config", "named", "bundled"]
)
def directory(request: pytest.FixtureRequest, model_dir: Path, tmp_path: Path) -> Any:
    """Model directories that say the same things in different ways."""
    if request.param == "bundled":
        return bundled_dir()
    copy = tmp_path / "model"
    shutil.copytree(model_dir, copy)
    config = json.loads((copy / "tokenizer_config.json").read_text())
    template = (copy / "chat_template.jinja").read_text()
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "bos off": {"add_bos_token": False},
        "eos on": {"add_eos_token": True},
        "both on": {"add_bos_token": True, "add_eos_token": True},
        "in config": {"chat_template": template + "config"},
        "named": {
            "chat_template": [
                {"name": "default", "template": template + "named"},
                {"name": "tool_use", "template": "no"},
            ]
        },
    }
    if "chat_template" in changes[request.param]:
        (copy / "chat_template.jinja").unlink()
    (copy / "tokenizer_config.json").write_text(json.dumps(config | changes[request.param]))
    return copy


def test_ids_equal_those_of_transformers(directory: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(directory)
    codec = load(directory)
    for text in TEXTS:
        assert codec.encode(text) == reference(text)["input_ids"], text
    for chat in CHATS:
        expected = reference.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert codec.encode_rendered(codec.render_chat(chat)) == expected


def test_detokenized_pieces_add_up_to_the_decoding_of_transformers(directory: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(directory)
    codec = load(directory)
    for text in TEXTS:
        ids = reference(text)["input_ids"]
        detokenizer = codec.detokenizer()
        pieces = [detokenizer.add(token_id) for token_id in ids]
        assert "".join(pieces) + detokenizer.flush() == reference.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def test_no_piece_is_ever_a_broken_character(codec: TextCodec) -> None:
    text = "🙂🙃日本語é" * 3
    detokenizer = codec.detokenizer()
    pieces = [detokenizer.add(token_id) for token_id in codec.encode(text)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert any(not piece for piece in pieces[1:]), "some token is only a part of a character"


def test_invalid_bytes_come_out_as_the_decoder_has_them_and_in_time(codec: TextCodec) -> None:
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.randrange(400) for _ in range(rng.randint(1, 60))]
        detokenizer = codec.detokenizer()
        pieces = [detokenizer.add(token_id) for token_id in ids]
        whole = "".join(pieces) + detokenizer.flush()
        assert whole == codec._tokenizer.decode(ids, skip_special_tokens=True)


def test_endless_garbage_keeps_a_small_window(codec: TextCodec) -> None:
    lead_byte = codec._tokenizer.token_to_id("ð")  # 0xf0: begins a character, never ends one
    assert lead_byte is not None
    detokenizer = codec.detokenizer()
    text = "".join(detokenizer.add(lead_byte) for _ in range(1000))
    assert len(detokenizer._window) < 100
    assert 950 <= len(text) + len(detokenizer.flush()) <= 1000


def test_first_word_after_a_prompt_keeps_its_space() -> None:
    from tokenizers import Tokenizer, decoders, models

    vocab = {"▁the": 0, "▁fox": 1, "s": 2, "<|x|>": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="s"))
    tokenizer.add_special_tokens(["<|x|>"])
    tokenizer.decoder = decoders.Metaspace()
    codec = TextCodec(tokenizer)
    after_prompt = codec.detokenizer([0])
    assert [after_prompt.add(i) for i in (1, 2, 3, 0)] == [" fox", "s", "", " the"]
    alone = codec.detokenizer()
    assert [alone.add(i) for i in (1, 2)] == ["fox", "s"]


def test_template_that_refuses_a_chat_is_an_invalid_request(codec: TextCodec) -> None:
    with pytest.raises(InvalidRequestError, match="unknown role wizard") as caught:
        codec.render_chat([{"role": "wizard", "content": "x"}])
    assert caught.value.field == "chat"


def test_template_cannot_leave_its_sandbox(model_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model_dir, copy)
    (copy / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    codec = load(copy)
    with pytest.raises(InvalidRequestError):
        codec.render_chat(CHATS[0])


def test_model_without_template_or_tokenizer_says_so(model_dir: Path, tmp_path: Path) -> None:
    assert TextCodec.load(tmp_path) is None
    shutil.copy(model_dir / "tokenizer.json", tmp_path)
    codec = load(tmp_path)
    assert codec.encode("hello")
    with pytest.raises(InvalidRequestError, match="no chat template"):
        codec.render_chat(CHATS[0])
