import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.errors import InvalidParameterError
from twolane.params import SamplingParams
from twolane.rpc.params import given_to_proto, params_from_proto, params_to_proto
from twolane.v1.sampling_pb2 import SamplingParams as Message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.inf),
        ("frequency_penalty", -1e9),
        ("seed", -1),
        ("top_logprobs", 21),
        ("stop", ("",)),
        ("stop", ("x",) * 17),
        ("stop_token_ids", (-1,)),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 1.0}),
        ("max_tokens", "a"),
        ("max_tokens", 2.5),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("temperature", True),
        ("seed", "a"),
        ("top_logprobs", 1.0),
        ("ignore_eos", 1),
        ("stop", 5),
        ("stop", (5,)),
        ("stop_token_ids", 5),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{field: value})
    assert field in caught.value.field.replace("stop string", "stop")
    assert caught.value.metadata["bound"]


@given(
    max_tokens=st.none() | st.integers(1, 10_000),
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 1000),
    top_p=st.floats(0.01, 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop=st.lists(st.text(min_size=1, max_size=9), max_size=4).map(tuple),
    bias=st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=4),
    top_logprobs=st.none() | st.integers(0, 20),
    ignore_eos=st.booleans(),
)
def test_params_survive_the_wire(bias: dict[int, float], **given_params: Any) -> None:
    params = SamplingParams(logit_bias=bias, **given_params)
    wire = params_to_proto(params).SerializeToString()
    assert params_from_proto(Message.FromString(wire)) == params


def test_min_tokens_are_at_most_max_tokens_where_these_are_set() -> None:
    with pytest.raises(InvalidParameterError, match="min_tokens is 9; it must be 0 to 8"):
        SamplingParams(max_tokens=8, min_tokens=9)
    assert SamplingParams(min_tokens=200).max_tokens is None


def test_fields_that_are_not_given_stay_open_on_the_wire() -> None:
    message = given_to_proto({"top_k": 0, "seed": None, "stop": "x"})
    assert [field.name for field, _ in message.ListFields()] == ["top_k", "stop"]
    assert {field.name for field, _ in params_to_proto(SamplingParams()).ListFields()} == {
        "temperature", "top_k", "top_p", "min_p", "repetition_penalty"
    }  # fmt: skip
    with pytest.raises(InvalidParameterError, match="top_p"):
        given_to_proto({"top_p": 2.0})


def test_an_empty_message_means_the_defaults() -> None:
    assert params_from_proto(Message()) == SamplingParams()


def test_integers_are_numbers_and_one_stop_string_is_a_list_of_one() -> None:
    params = SamplingParams(temperature=1, stop="END", stop_token_ids=[1])  # type: ignore[arg-type]
    assert (params.temperature, params.stop, params.stop_token_ids) == (1, ("END",), (1,))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 10**400},
        {"top_p": 10**400},
        {"frequency_penalty": -(10**400)},
        {"min_p": 10**400},
        {"logit_bias": {1: 10**400}},
        {"repetition_penalty": 10**400},
    ],
)
def test_a_number_beyond_all_floats_is_refused_by_its_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        SamplingParams(**fields)
