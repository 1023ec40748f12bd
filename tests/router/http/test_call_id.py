"""What a call goes by: the client's `x-request-id`, or one that is drawn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.http.asking import PATH, http_cluster

IDS: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 3}


async def test_the_clients_id_names_the_answer_and_comes_back() -> None:
    async with http_cluster() as (client, _, _):
        headers = {"x-request-id": "order 66/b"}
        for fields in (IDS, {**IDS, "stream": True}, {**IDS, "prompt": [[1], [2]]}):
            response = await client.post(PATH, json=fields, headers=headers)
            assert response.headers["x-request-id"] == "order 66/b"
            assert '"id":"cmpl-order 66/b"' in response.text


async def test_an_error_has_the_clients_id_or_a_drawn_one() -> None:
    async with http_cluster() as (client, _, _):
        for fields in ({**IDS, "n": 2}, {**IDS, "model": "nope"}, {"prompt": [1, 1000]}):
            named = await client.post(PATH, json=fields, headers={"x-request-id": "mine"})
            assert named.headers["x-request-id"] == "mine"
            assert named.status_code >= 400
            drawn = await client.post(PATH, json=fields)
            assert len(drawn.headers["x-request-id"]) == 16
        text = await client.post(PATH, content=b"x", headers={"x-request-id": "mine"})
        assert (text.status_code, text.headers["x-request-id"]) == (415, "mine")


@pytest.mark.parametrize("given", ["x" * 65, "caf\xe9", "a\tb"])
async def test_an_id_that_is_too_long_or_not_printable_is_refused_by_name(given: str) -> None:
    async with http_cluster() as (client, _, _):
        headers = [(b"x-request-id", given.encode("latin-1"))]
        response = await client.post(PATH, json=IDS, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-request-id"
        assert len(response.headers["x-request-id"]) == 16
