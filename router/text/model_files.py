"""The files of a Hugging Face model directory that the router reads, besides tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from twolane.lfs import is_lfs_pointer, lfs_complaint
from twolane.router.text.chat_template import ChatTemplate

SPECIAL_TOKEN_NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip


class ModelFilesError(Exception):
    """A file of the model directory cannot be used; the message names it and says why."""


class NoTemplateError(ModelFilesError):
    """The model has no usable chat template; its tokenizer may still be usable."""


def read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty if there is no such file."""
    if not path.exists():
        return {}
    refuse_pointer(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelFilesError(f"{path} is not a JSON object")
    return content


def refuse_pointer(path: Path) -> None:
    """Raise `ModelFilesError` if the file is a git-lfs pointer."""
    if is_lfs_pointer(path):
        raise ModelFilesError(lfs_complaint(path))


def tokenizer_config(directory: Path) -> dict[str, Any]:
    """The contents of tokenizer_config.json. If it has no `added_tokens_decoder`, as from older
    tools, special_tokens_map.json overrides it."""
    config = read_json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= read_json(directory / "special_tokens_map.json")
    return config


def template_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a chat template can use by name: the usual ones, the named ones of
    `extra_special_tokens`, and every other `…_token`."""
    extra = config.get("extra_special_tokens")
    named = {**config, **(extra if isinstance(extra, dict) else {})}
    found = {}
    for name, token in named.items():
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (name.endswith("_token") or name not in config):
            found[name] = text
    return found


def chat_template(directory: Path, config: Mapping[str, Any]) -> ChatTemplate:
    """From the first of chat_template.jinja, chat_template.json, tokenizer_config.json.

    Raises `NoTemplateError` if there is no usable one.
    """
    path = directory / "chat_template.jinja"
    source: object
    if path.exists():
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise NoTemplateError(f"{path} cannot be read as text: {error}") from error
    else:
        source = read_json(directory / "chat_template.json").get("chat_template")
        source = source or config.get("chat_template")
    if isinstance(source, list):  # several named templates
        try:
            by_name = {str(entry["name"]): entry["template"] for entry in source}
        except (TypeError, KeyError) as error:
            raise NoTemplateError(
                "its chat templates are not objects with a name and a template"
            ) from error
        if "default" not in by_name:
            names = ", ".join(by_name)
            raise NoTemplateError(f"its chat templates are called {names}; none is the default")
        source = by_name["default"]
    if not source:
        raise NoTemplateError("the model has no chat template")
    if not isinstance(source, str):
        raise NoTemplateError(f"chat_template is {type(source).__name__}, not text")
    try:
        return ChatTemplate(source, template_tokens(config))
    except jinja2.TemplateSyntaxError as error:
        raise NoTemplateError(
            f"line {error.lineno} of the model's chat template is wrong: {error.message}"
        ) from error
