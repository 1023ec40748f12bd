"""Log-probabilities beside the texts of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.router.http.asking import PATH, http_cluster
from tests.router.tokenizer_kinds import random_texts, write_tokenizer
from twolane.router.doors.http.choices.choice import to_json
from twolane.router.doors.http.choices.completion import Completion
from twolane.router.doors.http.choices.logprobs import Logprobs
from twolane.router.doors.http.completion_request import parse_completion
from twolane.router.requests.piece import Piece
from twolane.router.text.codec import TextCodec


def piece_of(ids: list[int], **likeliest: float) -> Piece:
    top = tuple((int(name.removeprefix("t")), value) for name, value in likeliest.items())
    logprob = top[0][1] if top else -1.0
    return Piece(0, ids, logprobs=dict.fromkeys(range(len(ids)), (logprob, top)))


def test_texts_and_offsets_add_up_to_the_answer_though_characters_take_several_tokens() -> None:
    spelled = {1: b" so", 2: b"\xf0\x9f", 3: b"\x91\x8d", 4: b" \xe4", 5: "\u4f60".encode()[1:]}
    of_answer = Logprobs(spelled.__getitem__)
    pieces = [of_answer.of(piece_of(ids)) for ids in ([1, 2], [3, 4], [5])]
    texts = [text for piece in pieces for text in piece["tokens"]]
    assert texts == [" so", "", "👍", " ", "你"]
    offsets = [at for piece in pieces for at in piece["text_offset"]]
    assert offsets == [len("".join(texts[:n])) for n in range(len(texts))]


def test_the_chosen_token_has_one_name_in_both_lists() -> None:
    spelled = {1: b"\xe4", 2: b"\xe5", 3: b" a"}
    shown = Logprobs(spelled.__getitem__).of(piece_of([1], t1=-0.5, t2=-1.5, t3=-2.5))
    assert shown["tokens"] == [""]
    assert shown["top_logprobs"] == [{"": -0.5, "\ufffd": -1.5, " a": -2.5}]


@pytest.mark.parametrize("asked", [{}, {"logprobs": 2}])
def test_an_event_of_a_token_has_the_bytes_of_a_whole_answer_of_it(asked: dict[str, int]) -> None:
    request = parse_completion(msgspec.json.encode({"prompt": [1], **asked}), max_prompts=1)
    spelled = {1: b' "so"\n', 2: b"\xf0\x9f", 3: b" a"}
    stream, whole = (Completion(request, spelled.__getitem__, 4) for _ in range(2))
    for token_id, text in ((1, ' "so"\n'), (2, ""), (3, "\ufffd a")):
        piece = piece_of([token_id], t1=-0.1, t2=-1e-7, t3=-12.5)._replace(text=text)
        assert stream.chunk(piece) == to_json(whole.whole(piece))


def test_tokens_of_a_text_add_up_to_it(codec: TextCodec) -> None:
    text = " naïve café, 日本語のテキスト, 🙂🙃"
    shown = Logprobs(codec.token_bytes).of(piece_of(codec.encode(text)[1:]))
    assert "".join(shown["tokens"]) == text


@pytest.mark.parametrize("kind", ["llama2", "gemma", "qwen"])
async def test_tokens_of_an_answer_add_up_to_its_text(kind: str, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, kind)
    quick: dict[str, Any] = {"prefill_s": 0.0, "transfer_s": 0.0, "step_s": 0.0, "echoes": True}
    async with http_cluster(text=TextCodec.load(tmp_path), **quick) as (client, _, _):
        for text in ["over the dog", "👍👍 naïve 你好", *random_texts(5, seed=4)]:
            ids = tokenizer.encode(f"a{text}", add_special_tokens=False).ids
            asked = {"prompt": ids, "max_tokens": len(ids), "logprobs": 0}
            (choice,) = (await client.post(PATH, json=asked)).json()["choices"]
            assert "".join(choice["logprobs"]["tokens"]) == choice["text"], text
