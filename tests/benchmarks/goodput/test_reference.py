import pytest

from benchmarks.goodput.reference import UnknownReferenceError, key, read_reference
from benchmarks.load.record import Slo


def test_a_reference_tells_what_held_at_the_rates_that_it_measured() -> None:
    reference = read_reference("vllm_two_h200", "balanced")
    split = reference["vLLM 1P1D over NIXL"]
    assert split.held_at(8, Slo(0.3, 0.015)) == 0.95
    assert split.held_at(9, Slo(0.3, 0.015)) is None
    assert split.held_at(8, Slo(0.4, 0.015)) is None


def test_columns_of_references_are_as_long_as_their_rates() -> None:
    for mode in read_reference("vllm_two_h200", "balanced").values():
        columns = (mode.ttft_p50_ms, mode.ttft_p99_ms, mode.gap_p99_ms, *mode.held.values())
        assert {len(column) for column in columns} == {len(mode.rates_per_s)}
        assert mode.held.keys() == mode.served_per_s.keys()


def test_a_reference_of_another_workload_is_refused() -> None:
    with pytest.raises(UnknownReferenceError, match="measured on 'balanced', not 'chat'"):
        read_reference("vllm_two_h200", "chat")
    with pytest.raises(UnknownReferenceError, match="there are: vllm_two_h200"):
        read_reference("nobody", "chat")


def test_slos_are_named_in_milliseconds() -> None:
    assert key(Slo(0.3, 0.015)) == "300/15"
