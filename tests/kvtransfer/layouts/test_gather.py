"""Plans between unequal layouts, against a slow model that knows each value's place by heart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kvtransfer.laid_out import Bytes, cache, laid_out, layout, whole_pages
from twolane.kvtransfer.layouts.gather import Gather, HeadSpan, Paging, gather_of, head_spans
from twolane.kvtransfer.layouts.sources import MadePages, PageMaker
from twolane.layout import Layout, can_feed, mismatch


def carried(
    gather: Gather, source: Layout, target: Layout, slots: npt.NDArray[np.int64], pool: Bytes
) -> Bytes:
    """What a copy of the runs makes, a stretch at a time."""
    a_page = source.page_tokens // np.gcd(source.page_tokens, target.page_tokens)
    out = np.zeros((len(slots), target.page_bytes), dtype=np.uint8)
    q = gather.granule_bytes
    for page, of_page in enumerate(slots.reshape(len(slots), -1).tolist()):
        for unit, start, to, n_bytes in gather.runs():
            if of_page[unit] < 0:
                continue
            source_page, place = divmod(of_page[unit], a_page)
            at = start + place * int(gather.step[to // q]) * q
            out[page, to : to + n_bytes] = pool[source_page, at : at + n_bytes]
    return out


SIDES = st.fixed_dictionaries({
    "ranks": st.sampled_from([1, 2, 4, 8]), "page_tokens": st.sampled_from([16, 32, 48, 64]),
})  # fmt: skip


@settings(max_examples=120, deadline=None, database=None)
@given(
    a=SIDES,
    b=SIDES,
    heads=st.sampled_from([1, 2, 4, 8]),
    dtype=st.sampled_from(["bfloat16", "float32", "float8_e4m3fn"]),
    n_tokens=st.integers(1, 150),
    seed=st.integers(0, 9),
)
def test_every_byte_of_every_rank_is_the_right_one(
    a: dict[str, int], b: dict[str, int], heads: int, dtype: str, n_tokens: int, seed: int
) -> None:
    """Heads split, merged and replicated, and pages of other sizes, at once."""
    source = layout(whole_kv_heads=heads, dtype=dtype, layers=1, head_dim=4, **a)
    target = layout(whole_kv_heads=heads, dtype=dtype, layers=1, head_dim=4, **b)
    row = cache(source, n_tokens, seed)
    rng = np.random.default_rng(seed)
    paging = Paging(source.page_tokens, target.page_tokens, target.page_bytes)
    n_source, n_target = -(-n_tokens // source.page_tokens), paging.n_pages(n_tokens)
    offered = rng.permutation(n_source + 2)[:n_source].tolist()
    slots = paging.sources(offered, 0, n_target, n_tokens)
    pool = rng.integers(0, 256, (n_source + 2, source.page_bytes), dtype=np.uint8)
    pool[offered] = whole_pages(source, row)
    expected = whole_pages(target, row)
    assert (carried(gather_of(source, target), source, target, slots, pool) == expected).all()
    made = MadePages(pool, source, target)
    found = [made.take(slots[i : i + 1])[0][0].copy() for i in range(n_target)]
    assert (np.array(found) == expected).all()


@settings(max_examples=80, deadline=None, database=None)
@given(
    a=st.sampled_from([16, 32, 48, 64, 128]),
    b=st.sampled_from([16, 32, 48, 64, 128]),
    dtype=st.sampled_from(["bfloat16", "float8_e4m3fn"]),
    n_tokens=st.integers(1, 300),
    data=st.data(),
)
def test_pages_made_in_batches_of_what_was_offered_are_those_of_the_other_layout(
    a: int, b: int, dtype: str, n_tokens: int, data: st.DataObject
) -> None:
    source, target = layout(page_tokens=a, dtype=dtype), layout(page_tokens=b, dtype=dtype)
    row = cache(source, n_tokens, 1)
    own = laid_out(source, 0, row)
    offered = np.random.default_rng(0).permutation(len(own)).tolist()
    pool = np.empty_like(own)
    pool[offered] = own
    paging = Paging(a, b, target.page_bytes)
    pages = MadePages(pool, source, target) if a != b else None
    made: list[Bytes] = []
    for n_offered in range(1, len(offered) + 1):  # as chunks of the prompt are computed
        n_ready = paging.n_ready(n_offered, n_tokens)
        while len(made) < n_ready:
            stop = data.draw(st.integers(len(made) + 1, n_ready))
            src = paging.sources(offered[:n_offered], len(made), stop, n_tokens)
            memory, ids = pages.take(src) if pages else (pool, src)
            made += list(memory[ids].copy())
    assert (np.array(made) == laid_out(target, 0, row)).all()


def test_equal_layouts_are_one_run_of_a_whole_page() -> None:
    side = layout()
    assert list(gather_of(side, side).runs()) == [(0, 0, 0, side.page_bytes)]
    several = layout(ranks=4, whole_kv_heads=4)
    assert list(gather_of(several, several).runs()) == [(0, 0, 0, several.page_bytes)]
    paging = Paging(16, 16, side.page_bytes)
    assert paging.sources([5, 3, 9], 1, 3, 40).tolist() == [3, 9]


@pytest.mark.parametrize(
    ("ranks", "heads", "expected"),
    [
        # split: each target rank has one source rank, all its heads from there
        ((1, 2), 4, [HeadSpan(0, 0, 0, 0, 2), HeadSpan(0, 1, 2, 0, 2)]),
        # merged: one target rank, two source ranks
        ((2, 1), 4, [HeadSpan(0, 0, 0, 0, 2), HeadSpan(1, 0, 0, 2, 2)]),
        # replicated at the target: both copies of head 0 from the one who has it
        ((1, 4), 2, [HeadSpan(0, rank, rank // 2, 0, 1) for rank in range(4)]),
        # replicated at the source: the target ranks take turns
        ((4, 2), 1, [HeadSpan(0, 0, 0, 0, 1), HeadSpan(1, 1, 0, 0, 1)]),
        ((4, 1), 2, [HeadSpan(0, 0, 0, 0, 1), HeadSpan(2, 0, 0, 1, 1)]),
    ],
)  # fmt: skip
def test_heads_are_split_merged_and_replicated(
    ranks: tuple[int, int], heads: int, expected: list[HeadSpan]
) -> None:
    source, target = (layout(ranks=n, whole_kv_heads=heads) for n in ranks)
    assert head_spans(source, target) == expected


def test_runs_are_as_long_as_they_can_be() -> None:
    """Of the 8B shape: a head's tokens of one source page, or all heads of a rank in a layer."""
    shape = {"layers": 32, "head_dim": 128, "whole_kv_heads": 8}
    large, small = layout(page_tokens=64, **shape), layout(page_tokens=16, **shape)
    lengths = [n for *_, n in gather_of(small, large).runs()]
    assert set(lengths) == {16 * 128 * 2}
    assert len(lengths) == 32 * 2 * 8 * 4
    half = replace(large, ranks=2, kv_heads=4)
    lengths = [n for *_, n in gather_of(large, half).runs()]
    assert set(lengths) == {4 * 64 * 128 * 2}
    assert len(lengths) == 32 * 2 * 2


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("layers", {"layers": 3}),
        ("head_dim", {"head_dim": 16}),
        ("kv_heads", {"whole_kv_heads": 4}),
        ("dtype", {"dtype": "float8_e4m3fn"}),
    ],
)
def test_layouts_that_no_plan_joins_are_refused_by_field(
    field: str, changed: dict[str, int | str]
) -> None:
    assert mismatch(layout(), layout(**changed), ("bfloat16",)) == field


def test_a_sender_makes_what_it_says_it_makes() -> None:
    small, large = layout(), layout(page_tokens=64)
    fp8 = layout(page_tokens=64, dtype="float8_e4m3fn")
    assert mismatch(small, small, ()) is None
    assert mismatch(small, large, ()) == "page_tokens"
    assert mismatch(small, layout(ranks=2), ()) == "ranks"
    assert mismatch(layout(ranks=2), layout(ranks=2), ()) is None
    assert mismatch(layout(ranks=4), large, ("bfloat16",)) is None
    assert mismatch(small, large, ("bfloat16",)) is None
    assert mismatch(small, fp8, ("bfloat16", "float8_e4m3fn")) is None
    assert mismatch(fp8, small, ("float8_e4m3fn",)) == "dtype", (
        "what FP8 dropped does not come back"
    )


def test_a_pool_that_is_not_in_host_memory_makes_nothing() -> None:
    text = '{"dtype":"uint8","head_dim":8,"kv_heads":1,"layers":1,"page_tokens":16}'
    assert PageMaker(np.zeros((2, 256), np.uint8), text).makes_dtypes == ("uint8",)
    assert PageMaker(np.zeros((2, 256), np.uint8)).makes_dtypes == ()
    assert PageMaker(np.zeros((0, 256), np.uint8), text).makes_dtypes == ()


def test_texts_that_tell_nothing_are_no_reason_against_a_pair() -> None:
    text = '{"dtype":"uint8","head_dim":8,"kv_heads":1,"layers":1,"page_tokens":16}'
    assert can_feed(text, text, ())
    assert can_feed("", text, ())
    assert can_feed(text, "{", ())
    assert not can_feed(text, text.replace("16", "32"), ())
    assert can_feed(text, text.replace("16", "32"), ("uint8",))
