import pytest

from benchmarks.traffic.page_waste import draw_lengths, measure_waste


def test_waste_of_a_row_is_what_counting_by_hand_gives() -> None:
    # 30 tokens of prompt, 4 of answer: steps hold 31, 32, 33 of 32, 32, 48 positions.
    waste = measure_waste([(30, 4)], 16)
    assert waste.prompt_share == pytest.approx(2 / 32)
    assert waste.decode_share == pytest.approx((1 + 0 + 15) / (32 + 32 + 48))
    assert waste.end_share == pytest.approx(15 / 48)


def test_rows_count_by_the_memory_they_hold() -> None:
    # A full page and a page with one token: the shares of the two are not averaged.
    assert measure_waste([(160, 2), (1, 2)], 16).prompt_share == pytest.approx(15 / 176)


def test_an_answer_of_one_token_takes_no_decode_step() -> None:
    waste = measure_waste([(16, 1), (16, 2)], 16)
    assert waste.end_share == pytest.approx(15 / 48)
    assert waste.decode_share == pytest.approx(15 / 32)


def test_larger_pages_waste_more_and_small_ones_little_on_the_bundled_trace() -> None:
    lengths = draw_lengths("azure-conv", 100, seed=1)
    small, large = measure_waste(lengths, 16), measure_waste(lengths, 64)
    assert 0 < small.decode_share < large.decode_share < 0.08
    # About half a page a row: 8 of 1,300 positions.
    assert small.decode_share == pytest.approx(8 / 1_300, rel=0.5)
