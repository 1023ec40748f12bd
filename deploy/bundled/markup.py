"""Special tokens and the chat template, in the two forms that must agree: Jinja and Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BEGIN = "<|begin|>"  # the first token of every document and prompt; the tokenizer adds it
END = "<|end|>"  # ends a story, an answer, a chat turn: the only token that stops generation
PAD = "<|pad|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
SPECIAL_TOKENS = (PAD, BEGIN, END, SYSTEM, USER, ASSISTANT)  # ids 0 to 5, in this order

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] | trim + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


class Message(NamedTuple):
    """One turn of a chat; `role` is system, user or assistant."""

    role: str
    content: str


def render_chat(messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
    """What `CHAT_TEMPLATE` makes of `messages`, without the leading `BEGIN`."""
    turns = [f"<|{role}|>\n{content.strip()}{END}\n" for role, content in messages]
    return "".join(turns) + (f"{ASSISTANT}\n" if add_generation_prompt else "")
