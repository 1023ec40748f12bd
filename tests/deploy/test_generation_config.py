"""`--generation-config`: whose sampling defaults a cluster's requests take."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from twolane.deploy.bundled import model_path
from twolane.deploy.cli.topology_options import topology_of
from twolane.deploy.process import compose_router
from twolane.deploy.process.compose_router import router_config
from twolane.deploy.spec.resolve import resolve
from twolane.router.text.model_files import ModelFilesError
from twolane.testing import start_local


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The bundled model, with defaults of its own."""
    directory = tmp_path / "model"
    shutil.copytree(model_path(), directory)
    write(directory, temperature=0.0, repetition_penalty=1.3, eos_token_id=2)
    return directory


def write(directory: Path, **facts: Any) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "generation_config.json").write_text(json.dumps(facts))


def defaults(model: Path, **options: Any) -> dict[str, Any]:
    """As the router of that cluster has them."""
    spec = resolve(topology_of({"model": str(model), **options})).router()
    (found,) = router_config(spec).defaults.values()
    return dict(found.sampling)


def test_the_option_chooses_whose_defaults_hold(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", temperature=0.7)
    own = {"temperature": 0.0, "repetition_penalty": 1.3}
    assert defaults(model) == defaults(model, generation_config="auto") == own
    assert defaults(model, generation_config="none") == {}
    assert defaults(model, generation_config=str(tmp_path / "other")) == {"temperature": 0.7}
    (model / "generation_config.json").unlink()
    assert defaults(model) == {}


def test_a_directory_without_the_file_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"there is no .*nowhere/generation_config\.json"):
        defaults(model, generation_config=str(tmp_path / "nowhere"))


def test_a_cluster_answers_as_its_model_says_and_as_the_request_says_otherwise(model: Path) -> None:
    with start_local(model=model, colocated=1) as cluster, cluster.client() as client:

        def answer(**options: Any) -> tuple[int, ...]:
            return client.generate("Once upon a time", max_tokens=40, **options).token_ids

        told = answer()
        assert told == answer(temperature=0, repetition_penalty=1.3)
        assert told != answer(repetition_penalty=1.0)


def test_the_routers_log_tells_what_requests_take(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        defaults(model)
    (record,) = (its for its in caplog.records if its.name == compose_router.__name__)
    words = "requests for model that say nothing else take temperature 0.0, repetition_penalty 1.3"
    assert record.getMessage() == words
