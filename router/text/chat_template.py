"""A model's chat template, rendered as in transformers: the same sandbox, filters, globals.

Templates come with model files, so they run in jinja2's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from twolane.errors import InvalidRequestError

# errors that a template can raise: the sandbox runs methods of strings, lists and dicts
_REFUSALS = (
    jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError
)  # fmt: skip


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template with the model's special tokens."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render the prompt up to the assistant's turn.

        Raises `InvalidRequestError` if the template refuses the messages (for example two of one
        role in a row).
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except RecursionError as error:
            raise InvalidRequestError(
                "the model's chat template recurses infinitely", field="chat"
            ) from error
        except _REFUSALS as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", field="chat"
            ) from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
