"""Text to token ids and back, from a Hugging Face model directory, without transformers.

It reads tokenizer.json, tokenizer_config.json with special_tokens_map.json, and the chat
template (`twolane.router.text.model_files`). The ids are those of tokenizer.json, which is what
`PreTrainedTokenizerFast` reads (a test says so), in a tenth of the memory and a hundredth of its
start-up. If a checkpoint names another tokenizer class, transformers 5 rebuilds some tokenizers
from the vocabulary, and ids may then differ: `LlamaTokenizer` places spaces differently from a
tokenizer.json with a Prepend normalizer.

As in transformers, only the post-processor of tokenizer.json adds special tokens around a prompt:
add_bos_token and add_eos_token in tokenizer_config.json have no effect. An add_prefix_space there
overrides tokenizer.json.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers

from twolane.errors import InvalidRequestError
from twolane.router.text.byte_level import BYTE_LEVEL
from twolane.router.text.chat_template import ChatTemplate
from twolane.router.text.detokenizer import Decoding, Detokenizer
from twolane.router.text.model_files import (
    ModelFilesError,
    NoTemplateError,
    chat_template,
    refuse_pointer,
    tokenizer_config,
)
from twolane.router.text.token_bytes import TokenBytes

log = logging.getLogger(__name__)
NO_TEMPLATE = "the model has no chat template"


class TextCodec:
    """Immutable after construction; may be used from several threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None = None,
        *,
        why_no_chat: str = NO_TEMPLATE,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._why_no_chat = why_no_chat
        # The bytes that one token adds to a text; for a special token its name.
        self.token_bytes = TokenBytes(tokenizer).__getitem__
        self._most_bytes = most_bytes(tokenizer)
        self._decoding = Decoding(tokenizer)

    @classmethod
    def load(cls, directory: Path | str) -> TextCodec | None:
        """The codec of a model directory, or None if there is no tokenizer.json in it: such a model
        is served only with token ids. A model whose chat template cannot be used serves only plain
        prompts. Raises `ModelFilesError`."""
        directory = Path(directory)
        path = directory / "tokenizer.json"
        if not path.exists():
            return None
        tokenizer = _read_tokenizer(path)
        config = tokenizer_config(directory)
        wanted = config.get("add_prefix_space")
        if isinstance(wanted, bool):
            _set_prefix_space(tokenizer, wanted)
        try:
            return cls(tokenizer, chat_template(directory, config))
        except NoTemplateError as error:
            if str(error) != NO_TEMPLATE:
                log.warning("%s: no chat is served: %s", directory, error)
            return cls(tokenizer, why_no_chat=str(error))

    def encode(self, text: str) -> list[int]:
        """Encode a plain prompt, with the special tokens that the model needs around it."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def least_tokens(self, text: str) -> int:
        """At least so many tokens has the text, as far as that can be said without tokenizing it.
        0: nothing can."""
        return len(text.encode()) // self._most_bytes if self._most_bytes else 0

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a chat's prompt with the model's template. Raises `InvalidRequestError`."""
        if self._chat_template is None:
            raise InvalidRequestError(self._why_no_chat, field="chat")
        return self._chat_template.render(messages)

    def encode_rendered(self, rendered: str) -> list[int]:
        """Encode the text of `render_chat`: the template has added the special tokens itself."""
        ids: list[int] = self._tokenizer.encode(rendered, add_special_tokens=False).ids
        return ids

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for one answer that follows the prompt `context`."""
        return Detokenizer(self._decoding, context)


def _read_tokenizer(path: Path) -> Tokenizer:
    refuse_pointer(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no class of its own
        raise ModelFilesError(f"{path} is not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def most_bytes(tokenizer: Tokenizer) -> int:
    """The most bytes of a text that one token stands for. 0 if no bound is known: only plain
    byte-level tokenizers keep every byte."""
    its = json.loads(tokenizer.to_str())
    before = its["pre_tokenizer"] or {"type": ""}
    steps = before.get("pretokenizers", [before])
    vocabulary = its["model"].get("vocab", ())
    added = its["added_tokens"]
    keeps_all = (
        its["model"].get("type") == "BPE"
        and its["normalizer"] is None
        and bool(steps)
        and steps[-1]["type"] == "ByteLevel"
        and all(step["type"] in ("ByteLevel", "Split", "Digits") for step in steps)
        and all(step.get("behavior", "Isolated") == "Isolated" for step in steps)
        and all(char in vocabulary for char in BYTE_LEVEL)
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )
    if not keeps_all:
        return 0
    longest = max(map(len, vocabulary))  # a byte is one character there
    return max([longest, *(len(token["content"].encode()) for token in added)])


def _set_prefix_space(tokenizer: Tokenizer, wanted: bool) -> None:
    """Set whether text without a leading space is encoded as if it had one."""
    top = tokenizer.pre_tokenizer
    for part in _steps(top) if isinstance(top, pre_tokenizers.Sequence) else [top]:
        if isinstance(part, pre_tokenizers.ByteLevel):
            part.add_prefix_space = wanted
        elif isinstance(part, pre_tokenizers.Metaspace) and not wanted:
            part.prepend_scheme = "never"
        elif isinstance(part, pre_tokenizers.Metaspace) and part.prepend_scheme == "never":
            part.prepend_scheme = "first"
    normalizer = tokenizer.normalizer
    if isinstance(normalizer, normalizers.Sequence) and not wanted:
        kept = [step for step in _steps(normalizer) if not isinstance(step, normalizers.Prepend)]
        tokenizer.normalizer = normalizers.Sequence(kept)


def _steps(sequence: Any) -> list[Any]:
    return list(sequence)  # its stub lacks __iter__
