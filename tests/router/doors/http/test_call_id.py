"""What a call goes by: the client's `x-request-id`, or one that is drawn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.freed import until_free
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


async def test_what_asks_no_worker_has_an_id_too() -> None:
    """OpenAI's clients show it, of a list of models as of an error."""
    async with http_cluster() as (client, _, _):
        asked = {
            "GET /v1/models": 200,
            "GET /v1/models/nope": 404,
            "GET /nope": 404,
            f"GET {PATH}": 405,
        }
        for call, status in asked.items():
            method, path = call.split()
            named = await client.request(method, path, headers={"x-request-id": "mine"})
            assert (named.status_code, named.headers["x-request-id"]) == (status, "mine"), call
            drawn = await client.request(method, path)
            assert len(drawn.headers["x-request-id"]) == 16, call


@pytest.mark.parametrize("given", ["x" * 65, "caf\xe9", "a\tb"])
async def test_an_id_that_is_too_long_or_not_printable_is_refused_by_name(given: str) -> None:
    async with http_cluster() as (client, _, _):
        headers = [(b"x-request-id", given.encode("latin-1"))]
        response = await client.post(PATH, json=IDS, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-request-id"
        assert len(response.headers["x-request-id"]) == 16


async def test_an_id_of_full_length_names_one_prompt_and_is_refused_by_name_for_several() -> None:
    async with http_cluster() as (client, _, _):
        headers = {"x-request-id": "x" * 64}
        assert (await client.post(PATH, json=IDS, headers=headers)).status_code == 200
        several = {**IDS, "prompt": [[1], [2]]}
        response = await client.post(PATH, json=several, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-request-id"
        assert "at most 62" in response.json()["error"]["message"]
        headers = {"x-request-id": "x" * 62}
        assert (await client.post(PATH, json=several, headers=headers)).status_code == 200


async def test_an_id_that_is_running_is_refused_and_free_again_once_its_client_has_left() -> None:
    async with http_cluster(step_s=0.02) as (client, server, cluster):
        headers = {"x-request-id": "mine"}
        long = {"prompt": [1], "max_tokens": 1900, "stream": True}
        async with client.stream("POST", PATH, json=long, headers=headers) as running:
            lines = running.aiter_lines()
            await anext(lines)
            again = await client.post(PATH, json=IDS, headers=headers)
            assert (again.status_code, again.json()["error"]["code"]) == (409, "duplicate_request")
            assert (await client.post(PATH, json=IDS)).status_code == 200
        await until_free(server, cluster)
        assert (await client.post(PATH, json=IDS, headers=headers)).status_code == 200
