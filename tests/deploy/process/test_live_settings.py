"""Settings of a router process: what is live is set as at a start, the rest is refused by name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from twolane.deploy.bundled import model_path
from twolane.deploy.process.live_settings import LiveSettings
from twolane.deploy.spec.settings import RouterSettings
from twolane.deploy.spec.specs import ModelSpec, RouterSpec
from twolane.engine.config import EngineConfig
from twolane.errors import InvalidRequestError, PreconditionError
from twolane.router.config import RouterConfig
from twolane.security.key_file import KeyFile

SPEC = RouterSpec(
    router_id="router-0",
    model=ModelSpec(config=EngineConfig(model_dir=model_path())),
    settings=RouterSettings(store="redis://user:password@host", max_queued=50),
)


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    logger = logging.getLogger("twolane")
    level = logger.level
    yield
    logger.setLevel(level)


def made(held: list[RouterConfig], keys: KeyFile | None = None) -> LiveSettings:
    return LiveSettings(SPEC, keys, held.append)


def test_what_is_set_makes_the_config_that_a_start_with_it_makes() -> None:
    held: list[RouterConfig] = []
    settings = made(held)
    settings.plan(
        {
            "router.max_queued": "7",
            "router.max_prompt_tokens": "100",
            "router.max_output_tokens": "30",
            "router.growth_tokens": "16",
            "timing.suspicion_s": "4.5",
            "log_level": '"debug"',
        }
    )()
    (config,) = held
    assert config.admission.max_queued == 7
    assert (config.limits.prompt_tokens, config.limits.max_tokens) == (100, 30)
    assert config.admission.growth_reserve_tokens == 16
    assert config.membership.suspicion_s == 4.5
    assert logging.getLogger("twolane").level == logging.DEBUG
    settings.plan({})()
    assert held[-1].admission.max_queued == 50, "as it was started"


def test_the_live_ones_are_those_that_say_so_and_each_changes_what_holds() -> None:
    """A new live option belongs into the test above, and must be one that a router reads anew."""
    live = {its.name for its in made([]).fields({}) if its.live}
    assert live == {
        *("router.max_queued", "router.max_prompt_tokens", "router.max_output_tokens"),
        *("router.growth_tokens", "timing.suspicion_s", "log_level"),
    }


def test_fields_tell_where_a_value_is_from_and_no_secret() -> None:
    fields = {its.name: its for its in made([]).fields({"router.max_prompt_tokens": "100"})}
    assert fields["router.max_prompt_tokens"].source == "operator"
    assert fields["router.max_prompt_tokens"].value == "100"
    assert fields["router.max_queued"].source == "file"
    assert fields["router.growth_tokens"].source == "default"
    assert fields["router.growth_tokens"].value == "64"
    assert json.loads(fields["router.store"].value) == "(secret)"
    assert not any("password" in str(its) for its in fields.values())


@pytest.mark.parametrize(
    ("name", "value", "error", "why"),
    [
        ("router.max_queued", "0", InvalidRequestError, "router.max_queued is 0: input should be"),
        ("router.max_queued", '"many"', InvalidRequestError, "router.max_queued"),
        ("router.max_queued", "{", InvalidRequestError, "is no JSON"),
        ("log_level", '"loud"', InvalidRequestError, "log_level"),
        ("timing.suspicion_s", "0.5", InvalidRequestError, "must be more than heartbeat_s"),
        ("timing.suspicion_s", "1e9", InvalidRequestError, "less than or equal to 3600"),
        ("router.port", "7300", PreconditionError, "twolane up … --port 7300"),
        ("router.store", "null", PreconditionError, "router.store needs a restart"),
        ("workers.step_tokens", "512", PreconditionError, "--step-tokens of twolane up"),
        ("model", '"other"', PreconditionError, "--model of twolane up"),
        ("router.nonsense", "1", InvalidRequestError, "twolane config get"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name_with_what_to_do(
    name: str, value: str, error: type[Exception], why: str
) -> None:
    held: list[RouterConfig] = []
    with pytest.raises(error, match=why):
        made(held).plan({"router.growth_tokens": "16", name: value})
    assert not held


def test_a_file_of_keys_that_is_broken_is_refused_before_anybody_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys: []\n")
    settings = made([], KeyFile(file))
    settings.plan_reload()()
    file.write_text("keys: [\n")
    with pytest.raises(PreconditionError, match="not YAML"):
        settings.plan_reload()


def test_part_of_a_name_is_answered_with_the_whole_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"'max_queued': router\.max_queued is meant"):
        made([]).plan({"max_queued": "7"})
