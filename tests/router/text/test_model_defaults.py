"""Sampling defaults of a model's generation_config.json, and max_tokens that nobody has set."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.router.http.asking import PATH, http_cluster
from twolane.aclient import AsyncClient
from twolane.router.config import LimitsConfig, RouterConfig
from twolane.router.router import Router
from twolane.router.testing.client import play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.text.model_defaults import NO_DEFAULTS, ModelDefaults, read_defaults
from twolane.router.text.model_files import ModelFilesError
from twolane.v1 import inference_pb2, sampling_pb2

SAID = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05}
CONTEXT = 2048  # of a scripted worker; its pool holds more


def written(directory: Path, **facts: Any) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(facts))
    return directory


def request(n_prompt: int = 2, **sampling: Any) -> inference_pb2.GenerateRequest:
    ids = inference_pb2.TokenIds(ids=[1] * n_prompt)
    params = sampling_pb2.SamplingParams(**sampling)
    return inference_pb2.GenerateRequest(token_ids=ids, sampling=params)


def assigned(
    message: inference_pb2.GenerateRequest, config: RouterConfig, **options: Any
) -> sampling_pb2.SamplingParams:
    """What the workers are told of that request."""
    found: list[sampling_pb2.SamplingParams] = []

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async with aclosing(router.generate(message, **options)) as answer:
            while not found:
                await anext(answer)
                commands = cluster.workers["p0"].commands
                found.extend(c.assign.sampling for c in commands if c.HasField("assign"))

    play(script, config=config, clean_after_s=2.0)
    return found[0]


def test_the_fields_that_vllm_takes_are_read_and_no_others(tmp_path: Path) -> None:
    directory = written(
        tmp_path, **SAID, max_new_tokens=2048, do_sample=False, eos_token_id=[7], typical_p=0.5
    )
    assert read_defaults(directory) == ModelDefaults(sampling=SAID, max_tokens=2048)


def test_a_model_without_the_file_or_with_nulls_says_nothing(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == NO_DEFAULTS
    assert read_defaults(written(tmp_path, temperature=None, top_p=None)) == NO_DEFAULTS
    assert read_defaults(written(tmp_path, top_k=-1)).sampling == {"top_k": 0}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"top_p": 1.5}, "top_p is 1.5; it must be above 0.0, up to 1.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_file(
    facts: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFilesError, match=rf"generation_config\.json: {words}"):
        read_defaults(written(tmp_path, **facts))


def test_a_request_takes_the_models_values_where_it_sets_none() -> None:
    config = RouterConfig(defaults={"fake": ModelDefaults(sampling=SAID)})
    got = assigned(request(), config)
    assert {name: getattr(got, name) for name in SAID} == SAID
    own: dict[str, Any] = dict(zip(SAID, (1.0, 0, 1.0, 0.0, 1.0), strict=True))
    got = assigned(request(**own), config)
    assert {name: getattr(got, name) for name in SAID} == own


def test_defaults_are_those_of_the_model_that_answers() -> None:
    config = RouterConfig(defaults={"another": ModelDefaults(sampling=SAID, max_tokens=3)})
    got = assigned(request(), config)
    assert (got.temperature, got.top_k) == (1.0, 0)
    assert got.max_tokens > 3


@pytest.mark.parametrize(
    ("limits", "defaults", "options", "expected"),
    [
        ({}, {}, {}, CONTEXT - 100),
        ({"default_max_tokens": 500}, {}, {}, 500),
        ({"max_tokens": 400}, {}, {}, 400),
        ({}, {"max_tokens": 300}, {}, 300),
        ({}, {"max_tokens": 300}, {"default_max_tokens": 16}, 16),
    ],
)
def test_unset_max_tokens_are_what_fits_within_every_bound(
    limits: Any, defaults: Any, options: Any, expected: int
) -> None:
    config = RouterConfig(
        limits=LimitsConfig(**limits), defaults={"fake": ModelDefaults(**defaults)}
    )
    assert assigned(request(100), config, **options).max_tokens == expected


def test_max_tokens_of_a_request_go_before_max_new_tokens_of_the_model() -> None:
    config = RouterConfig(defaults={"fake": ModelDefaults(max_tokens=300)})
    assert assigned(request(max_tokens=900), config).max_tokens == 900


async def test_a_full_context_is_answered_by_both_doors_without_max_tokens() -> None:
    ids = [1] * (CONTEXT - 6)
    quick: dict[str, Any] = {"prefill_s": 0.0, "transfer_s": 0.0, "step_s": 0.0}
    async with (
        http_cluster(**quick) as (http, server, _),
        AsyncClient(server.address) as client,
    ):
        answer = await client.generate(token_ids=ids)
        assert (len(answer.tokens), answer.finish_reason) == (6, "length")
        answer = await client.generate(token_ids=ids[:20], min_tokens=CONTEXT - 20)
        assert len(answer.tokens) == CONTEXT - 20
        for prompt, expected in ((ids, 6), ([1, 2], 16)):
            whole = (await http.post(PATH, json={"prompt": prompt})).json()
            assert whole["usage"]["completion_tokens"] == expected
        whole = (await http.post(PATH, json={"prompt": [1, 2], "min_tokens": 20})).json()
        assert whole["usage"]["completion_tokens"] == 20
