"""The demo's prompts: a story, a chat, and a fact to recall from a list."""

from __future__ import annotations

from dataclasses import dataclass

from twolane.prompts import RequestOptions
from twolane.values import Message

_NOTES = {
    "amber falcon": "4729",
    "teal anchor": "glass lamp",
    "quiet harbor": "8306",
    "silver willow": "QX7",
    "copper lantern": "1954",
    "velvet canyon": "brass key",
    "frozen meadow": "6612",
    "crimson tower": "HT3",
}
_ASKED = "silver willow"


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One prompt of the demo. `shown` is printed before the answer."""

    title: str
    shown: str
    prompt: str | None
    options: RequestOptions


def demo_prompts() -> list[DemoPrompt]:
    story = "Once upon a time, there was a little fox named Mia"
    question = "Tell me a story about a brave rabbit."
    message: Message = {"role": "user", "content": question}
    notes = [f"The code of the {key} is {value}." for key, value in _NOTES.items()]
    asked = f"Question: What is the code of the {_ASKED}?\nAnswer:"
    recall = "\n".join(["Remember these notes.", *notes, asked])
    return [
        DemoPrompt("story", story, story, {"max_tokens": 160, "temperature": 0.7, "seed": 7}),
        DemoPrompt(
            "chat",
            f"user: {question}\nassistant: ",
            None,
            {"messages": [message], "max_tokens": 160, "temperature": 0.7, "seed": 3},
        ),
        DemoPrompt("recall", recall, recall, {"max_tokens": 12, "temperature": 0.0}),
    ]
