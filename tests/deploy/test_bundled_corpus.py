"""The corpus of the bundled model: deterministic, well formed, and split by construction."""

from __future__ import annotations

import re
from itertools import islice, pairwise
from random import Random

import torch
from tokenizers import Tokenizer

from twolane.deploy.bundled import model_path
from twolane.deploy.bundled.corpus import documents
from twolane.deploy.bundled.markup import BEGIN, END, SPECIAL_TOKENS
from twolane.deploy.bundled.packing import PackedRows
from twolane.deploy.bundled.plots import PLOTS
from twolane.deploy.bundled.records import KEYS, key_split, recall_document, recall_prompt
from twolane.deploy.bundled.stories import Split, draw_plan, tell


def test_same_seed_tells_the_same_stories_and_another_seed_does_not() -> None:
    assert list(islice(documents("test"), 50)) == list(islice(documents("test"), 50))
    assert list(islice(documents("other"), 50)) != list(islice(documents("test"), 50))


def test_every_plot_can_be_told_without_an_empty_slot() -> None:
    rng = Random(0)
    told: set[str] = set()
    while len(told) < len(PLOTS):
        plan = draw_plan(rng, Split.TRAIN)
        story = tell(rng, plan, episodes=2)
        assert not re.search(r"[{}]|\ba [aeio]", story), story
        told.add(plan.plot.name)


def test_held_out_keys_occur_in_no_training_document() -> None:
    assert all(key_split(key) is Split.HELD_OUT for key in KEYS[Split.HELD_OUT])
    assert not set(KEYS[Split.TRAIN]) & set(KEYS[Split.HELD_OUT])
    assert len(KEYS[Split.HELD_OUT]) > 500
    held_out = set(KEYS[Split.HELD_OUT])
    seen: set[str] = set()
    for document in islice(documents("test"), 3000):
        words = re.findall(r"\w+", document.lower())
        seen |= {f"{first} {second}" for first, second in pairwise(words)}
    assert not held_out & seen
    assert len(set(KEYS[Split.TRAIN]) & seen) > 5000


def test_recall_prompts_ask_for_held_out_keys_only() -> None:
    rng = Random(3)
    for _ in range(50):
        prompt = recall_prompt(rng, Split.HELD_OUT, 16, 2000)
        assert not any(key in prompt.text for key in KEYS[Split.TRAIN])
        line = prompt.text[prompt.pair_start :].splitlines()[0]
        assert prompt.answer.strip() in line


def test_held_out_story_plans_are_disjoint_from_training_plans() -> None:
    rng = Random(5)
    plans = {split: {draw_plan(rng, split) for _ in range(2000)} for split in Split}
    assert not plans[Split.TRAIN] & plans[Split.HELD_OUT]
    assert all(plan.split is split for split in Split for plan in plans[split])


def test_a_document_cut_at_the_end_of_a_row_opens_the_next_one_whole() -> None:
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    begin = SPECIAL_TOKENS.index(BEGIN)
    rows = next(iter(PackedRows(tokenizer.to_str(), "test", rows=4, row_tokens=4097)))
    assert rows[:, 0].eq(begin).all()
    for row, following in pairwise(rows):
        cut = row[int(row.eq(begin).nonzero()[-1]) :]
        assert torch.equal(cut, following[: len(cut)])


def test_notes_of_a_training_document_answer_its_questions() -> None:
    document = recall_document(Random(11))
    assert document.endswith(END)
    assert document.count("Answer:") == document.count(END)
