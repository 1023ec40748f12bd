import itertools
import random
from typing import Any

import pytest

from twolane.router.text.stops import StopWatch


def run(stops: Any, pieces: Any) -> Any:
    watch, out = StopWatch(stops), []
    for piece in pieces:
        text, found = watch.feed(piece)
        out.append(text)
        if found:
            return "".join(out), True
    return "".join(out) + watch.flush(), False


def one_by_one(stops: Any, text: Any) -> Any:
    """The plain meaning: after each character, does the text end with a stop string?"""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end - max(map(len, hits))], True
    return text, False


@pytest.mark.parametrize(
    ("stops", "pieces", "outcome"),
    [
        ([], ["a", "b"], ("ab", False)),
        (["END"], ["the E", "N", "D is"], ("the ", True)),
        (["END"], ["the E", "N", "E"], ("the ENE", False)),
        (["aab"], ["aaa", "ab"], ("aa", True)),
        (["abc", "b"], ["abc"], ("a", True)),
        (["bc", "abc"], ["xa", "b", "c"], ("x", True)),
        (["\n\n"], ["one\n", "two\n", "\nthree"], ("one\ntwo", True)),
        (["é"], ["caf", "é", "!"], ("caf", True)),
    ],
)
def test_text_before_the_stop_string_is_emitted_and_the_stop_string_is_not(
    stops: Any, pieces: Any, outcome: Any
) -> None:
    assert run(stops, pieces) == outcome


def test_outcome_does_not_depend_on_how_the_text_is_cut() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        text = "".join(rng.choices("ab", k=rng.randint(1, 9)))
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        cuts = sorted(rng.sample(range(len(text) + 1), rng.randint(0, min(3, len(text)))))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        assert run(stops, pieces) == one_by_one(stops, text), (stops, pieces)


def test_only_what_may_be_a_stop_string_is_held_back() -> None:
    watch = StopWatch(["stop"])
    assert watch.feed("a st") == ("a ", False)
    assert watch.feed("ep s") == ("step ", False)
    assert watch.flush() == "s"
