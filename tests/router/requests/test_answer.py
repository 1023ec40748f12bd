"""Tokens to text to responses, with stop strings across token borders."""

from pathlib import Path
from typing import Any

import pytest

from tests.router.tokenizer_kinds import KINDS, write_tokenizer
from twolane.router.requests.answer import Answer
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import EOS, expected_answer
from twolane.router.text.codec import TextCodec
from twolane.rpc.columns import GOES_ON
from twolane.v1 import inference_pb2, sampling_pb2, worker_pb2


def answer_of(codec: TextCodec, stops: Any = (), min_tokens: Any = 0) -> Answer:
    return Answer(codec.detokenizer(), stops, min_tokens)


def feed(answer: Answer, ids: Any, finish_reason: Any = 0) -> bool:
    found = False
    for n, token_id in enumerate(ids):
        found = answer.add(token_id, finish_reason if n == len(ids) - 1 else GOES_ON)
        if found:
            break
    return found


def taken(answer: Answer) -> inference_pb2.GenerateResponse:
    piece = answer.take()
    assert piece is not None
    return piece.to_response()


def ids_of(codec: TextCodec, text: Any) -> Any:
    return codec.encode(text)[1:]  # without <s>


def test_tokens_that_wait_come_in_one_response(codec: TextCodec) -> None:
    answer = answer_of(codec)
    ids = ids_of(codec, "Once upon a time")
    feed(answer, ids)
    response = taken(answer)
    assert [t.token_id for t in response.tokens] == ids
    assert [t.index for t in response.tokens] == list(range(len(ids)))
    assert response.text == "Once upon a time"
    assert answer.take() is None
    assert answer.tokens == ids, "a resume needs them"


def test_stop_string_across_tokens_ends_the_answer_before_it(codec: TextCodec) -> None:
    answer = answer_of(codec, ["river"])
    ids = ids_of(codec, "near the river bank")
    assert feed(answer, ids)
    answer.end()
    assert taken(answer).text == "near the "
    assert len(answer.tokens) < len(ids)


def test_text_that_may_be_a_stop_string_is_held_and_comes_at_the_end(codec: TextCodec) -> None:
    answer = answer_of(codec, ["time!"])
    assert not feed(answer, ids_of(codec, "a time"), sampling_pb2.FINISH_REASON_LENGTH)
    assert taken(answer).text == "a "
    answer.end()
    assert taken(answer).text == "time"


def test_stop_string_within_the_first_min_tokens_is_text(codec: TextCodec) -> None:
    ids = ids_of(codec, "fox fox fox")
    answer = answer_of(codec, ["fox"], min_tokens=len(ids))
    assert feed(answer, ids)
    assert taken(answer).text.startswith("fox fox")


def test_token_that_ends_the_answer_by_its_id_has_no_text(codec: TextCodec) -> None:
    ids = ids_of(codec, "the fox")
    answer = answer_of(codec)
    feed(answer, ids, sampling_pb2.FINISH_REASON_STOP)
    response = taken(answer)
    assert len(response.tokens) == len(ids)
    assert "the fox".startswith(response.text)
    assert response.text != "the fox"


def test_unfinished_character_comes_out_at_the_end(codec: TextCodec) -> None:
    ids = ids_of(codec, "é🙂")
    answer = answer_of(codec)
    feed(answer, ids[:-1], sampling_pb2.FINISH_REASON_LENGTH)
    assert taken(answer).text == "é\ufffd"


def test_log_probabilities_are_passed_on_where_they_were_asked_for() -> None:
    answer = Answer(None, (), 0)
    answer.add(4, logprobs=(-0.5, ((4, -0.5),)))
    answer.add(5)
    with_logprob, without = taken(answer).tokens
    assert with_logprob.logprob == -0.5
    assert with_logprob.top_logprobs[0].token_id == 4
    assert not without.HasField("logprob")


@pytest.mark.parametrize("workers", [("p0", "d0"), ("b0",)])
def test_stop_string_frees_the_workers_and_the_answer_says_stop(
    codec: TextCodec, workers: Any
) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message("the fox", max_tokens=60)
        whole = await ask(router, request)
        assert whole.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
        stop = whole.text[20:23]
        # All of it would take 19 s, and the workers must be idle a second after its end.
        stopped = await ask(router, message("the fox", max_tokens=1900, stop=[stop]))
        assert stopped.finish_reason == sampling_pb2.FINISH_REASON_STOP
        assert stopped.text == whole.text[: whole.text.index(stop)]
        assert stopped.tokens == whole.tokens[: len(stopped.tokens)]
        assert len(stopped.tokens) < 60
        assert stopped.ledger.output_tokens == len(stopped.tokens)

    play(script, workers, text=codec)


def test_worker_that_overshoots_max_tokens_is_stopped() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        def forget_to_say_so(response: worker_pb2.SessionResponse) -> bool:
            for columns in response.tokens:
                columns.ClearField("ends")
            return False

        cluster.workers["d0"].loses = forget_to_say_so
        outcome = await ask(router, message([1, 2], max_tokens=5))
        assert outcome.tokens == expected_answer([1, 2], 5)
        assert outcome.finish_reason == sampling_pb2.FINISH_REASON_LENGTH

    play(script)


def test_half_a_character_never_overtakes_text_held_for_a_stop_string(codec: TextCodec) -> None:
    ids = [*ids_of(codec, "Hi"), codec._tokenizer.token_to_id("ð"), EOS]
    for finish_reason in (sampling_pb2.FINISH_REASON_STOP, sampling_pb2.FINISH_REASON_LENGTH):
        for stops in ([], ["Hi and more"]):
            answer = answer_of(codec, stops)
            assert not feed(answer, ids, finish_reason)
            answer.end()
            assert taken(answer).text == "Hi\ufffd"


def test_half_a_character_comes_out_where_no_worker_says_which_token_is_the_last(
    codec: TextCodec,
) -> None:
    answer = answer_of(codec, ["Hi and more"])
    feed(answer, [*ids_of(codec, "Hi"), codec._tokenizer.token_to_id("ð")])
    answer.end()
    assert taken(answer).text == "Hi\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_stop_strings_are_found_at_every_border_of_tokens_and_characters(
    kind: str, tmp_path: Path
) -> None:
    tokenizer = write_tokenizer(tmp_path, kind)
    codec = TextCodec.load(tmp_path)
    assert codec is not None
    context = codec.encode("Once")
    for text in [
        "a 👍👍 b",
        "你好，世界！",
        "한국어 ok",
        "👋🏽!\nNext",
        "x\n\ny",
        "caf\u00e9s ñandú",
    ]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        plain = Answer(codec.detokenizer(context), (), 0)
        feed(plain, ids, sampling_pb2.FINISH_REASON_LENGTH)
        whole = taken(plain).text
        spans = [(a, b) for a in range(len(whole)) for b in range(a + 1, len(whole) + 1)]
        for start, end in spans:
            stop = whole[start:end]
            answer = Answer(codec.detokenizer(context), [stop], 0)
            assert feed(answer, ids, sampling_pb2.FINISH_REASON_LENGTH), (whole, stop)
            answer.end()
            assert taken(answer).text == whole[: whole.index(stop)]
