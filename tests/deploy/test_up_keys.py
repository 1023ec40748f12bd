"""`twolane up --keys`: a whole cluster that asks for keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane.client import Client
from twolane.config import ClientConfig
from twolane.errors import UnauthenticatedError, UnavailableError
from twolane.security.key_edit import create_key
from twolane.testing import start_local


def test_cluster_with_a_file_of_keys_answers_those_that_show_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    key, _ = create_key(tmp_path / "keys.yaml", "acme")
    with start_local(engine="fake", keys="keys.yaml") as cluster:
        with cluster.client() as client, pytest.raises(UnauthenticatedError):
            client.generate(token_ids=[1], max_tokens=3)
        with Client(cluster.endpoint, config=ClientConfig(api_key=key)) as client:
            assert len(client.generate(token_ids=[1], max_tokens=3, ignore_eos=True).token_ids) == 3
        (tenant,) = cluster.status().tenants
        assert (tenant.tenant, tenant.output_tokens) == ("acme", 3)


def test_cluster_does_not_start_with_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys: 7")
    with (
        pytest.raises(UnavailableError, match=r"keys\.yaml: Expected `array`, got `int`"),
        start_local(engine="fake", keys=path),
    ):
        pass
