"""A small byte-level tokenizer in a model directory, as a checkpoint would bring it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from twolane.router.text.codec import TextCodec

CORPUS = [
    "Once upon a time there was a fox who lived near the river.",
    "user assistant system: hello, world! naïve café, 日本語のテキスト, Ελληνικά, 🙂🙃",
] * 20
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ('user', 'assistant', 'system') %}"
    "{{ raise_exception('unknown role ' + message.role) }}{% endif %}\n"
    "<|{{ message['role'] }}|> {{ message['content'] | trim }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: Any) -> Any:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<s>", "</s>", "<pad>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": True, "lstrip": False, "rstrip": False,
                      "normalized": False, "single_word": False, "__type": "AddedToken"},
        "pad_token": "<pad>",
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return directory


@pytest.fixture(scope="session")
def codec(model_dir: Path) -> TextCodec:
    loaded = TextCodec.load(model_dir)
    assert loaded is not None
    return loaded
