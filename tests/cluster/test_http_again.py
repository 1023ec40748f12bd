"""OpenAI's Python client and curl, whose router is killed: streams break and may go on elsewhere,
calls that were not answered yet are asked again and computed once."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import psutil
import pytest

from tests.cluster.real_cluster import fake_model
from tests.ports import router_ports
from tests.until import wait_until
from twolane import Client
from twolane.admin import AdminClient
from twolane.testing import LocalCluster, start_local

pytestmark = pytest.mark.timeout(300)
N_ROUTERS, N_TOKENS = 2, 400
SLOW = {"fake_paced": True, "fake_step_s": 0.01}  # a router is killed in the middle of an answer
# A busy machine stops a worker for seconds: it is not to be suspected then, and its rows computed
# again elsewhere.
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "suspicion_s": 30.0, "lease_s": 60.0}
ASKED: dict[str, Any] = {"model": "model", "prompt": "Once", "max_tokens": N_TOKENS, "seed": 3}
ASKED |= {"logprobs": 1, "extra_body": {"ignore_eos": True}}
BODY = {name: value for name, value in ASKED.items() if name != "extra_body"} | {"ignore_eos": True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    model = fake_model(tmp_path_factory.mktemp("slow"), **SLOW)
    more: dict[str, Any] = {"routers": N_ROUTERS, **router_ports(N_ROUTERS), **TIMES}
    with start_local(model=model, engine="fake", **more) as started:
        wait_until_they_know_each_other(started)
        yield started


def wait_until_they_know_each_other(cluster: LocalCluster) -> None:
    """Each router tells of the requests of all of them then."""
    for name in [f"router-{n}" for n in range(N_ROUTERS)]:
        with admin_of(cluster, name) as admin:
            wait_until(
                lambda a=admin: len([r for r in a.status().routers if not r.unreached]) == N_ROUTERS  # type: ignore[misc]
            )


def admin_of(cluster: LocalCluster, name: str) -> AdminClient:
    started = [e for e in cluster.events if e["kind"] == "started" and e["name"] == name]
    return AdminClient(started[-1]["admin"])


@pytest.fixture
def base_url(cluster: LocalCluster) -> str:
    return f"http://{cluster.http_endpoint}/v1"


@pytest.fixture(scope="module")
def expected(cluster: LocalCluster) -> str:
    with Client(cluster.endpoint) as client:
        return client.generate("Once", max_tokens=N_TOKENS, seed=3, ignore_eos=True).text


def kill_the_router_of(cluster: LocalCluster, port: int) -> None:
    """Of the connection to the HTTP door that has this port at its client's end: other connections
    may have the same."""
    ends = int(cluster.http_endpoint.rpartition(":")[2]), port
    for name in [f"router-{n}" for n in range(N_ROUTERS)]:
        connections = psutil.Process(cluster.pid(name)).net_connections("tcp")
        if any(each.raddr and (each.laddr.port, each.raddr.port) == ends for each in connections):
            n_events = len(cluster.events)
            cluster.kill(name)
            cluster.wait_for("started", name, after=n_events, timeout_s=120)
            wait_until_they_know_each_other(cluster)
            return
    raise AssertionError("no router has that connection")


def port_of(response: httpx.Response) -> int:
    stream = response.extensions["network_stream"]
    return int(stream.get_extra_info("client_addr")[1])


def counters(cluster: LocalCluster) -> dict[str, int]:
    """Of all routers that are there."""
    whole: dict[str, int] = {}
    for name in [f"router-{n}" for n in range(N_ROUTERS)]:
        with admin_of(cluster, name) as admin:
            for counter, n in admin.status().counters.items():
                whole[counter] = whole.get(counter, 0) + n
    return whole


def test_stream_of_a_killed_router_breaks_without_done_and_openais_client_raises(
    cluster: LocalCluster, base_url: str
) -> None:
    with (
        openai.OpenAI(base_url=base_url, api_key="none", max_retries=2) as client,
        client.completions.create(stream=True, **ASKED) as stream,
    ):
        next(stream)
        kill_the_router_of(cluster, port_of(stream.response))
        with pytest.raises((openai.APIError, httpx.TransportError)):
            list(stream)


def test_call_that_openais_client_asks_again_takes_over_what_its_killed_router_had(
    cluster: LocalCluster, base_url: str, expected: str
) -> None:
    """The first connection is that of a router that dies before it has answered."""
    ports: list[int] = []

    def note(response: httpx.Response) -> None:
        ports.append(port_of(response))

    def kill_when_it_runs() -> None:
        with Client(cluster.endpoint) as ours:
            wait_until(lambda: [r for r in cluster.status().requests if r.output_tokens > 3])
            ours.close()
        kill_the_router_of(cluster, ports[0])

    with (
        httpx.Client(event_hooks={"response": [note]}) as http,
        openai.OpenAI(base_url=base_url, api_key="none", http_client=http) as client,
    ):
        client.models.list()  # the connection stays, and so does its router
        killing = threading.Thread(target=kill_when_it_runs)
        killing.start()
        asked = {**ASKED, "extra_headers": {"Idempotency-Key": "mine"}}
        answer = client.completions.with_raw_response.create(**asked)
        killing.join()
    assert answer.retries_taken >= 1
    assert answer.parse().choices[0].text == expected
    after = counters(cluster)
    assert after["adopted"] >= 1
    assert not [name for name in after if name.startswith("resumes")]


def curl(url: str, body: dict[str, Any], *headers: str) -> tuple[dict[str, str], list[str], int]:
    """The answer's head and lines, and curl's exit status."""
    more = [part for header in headers for part in ("-H", header)]
    told = subprocess.run(
        ["curl", "-sSN", "-D", "-", "--json", json.dumps(body), *more, url],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    head, _, rest = told.stdout.partition("\n\n")
    fields = dict(line.lower().split(": ", 1) for line in head.splitlines() if ": " in line)
    return fields, [line for line in rest.splitlines() if line], told.returncode


def events(lines: list[str]) -> list[Any]:
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def test_curl_goes_on_with_a_stream_of_a_killed_router_behind_its_last_event(
    cluster: LocalCluster, base_url: str, tmp_path: Path
) -> None:
    url = f"{base_url}/completions"
    body = {**BODY, "stream": True, "return_token_ids": True}
    undisturbed = events(curl(url, body)[1])
    out = tmp_path / "broken"
    command = ["curl", "-sSN", "-D", "-", "-H", "x-twolane-resume: yes", "-o", "-"]
    with (
        out.open("w") as file,
        subprocess.Popen([*command, "--json", json.dumps(body), url], stdout=file) as running,
    ):
        wait_until(lambda: out.read_text().count("data: ") > 20)
        (connection,) = psutil.Process(running.pid).net_connections("tcp")
        kill_the_router_of(cluster, connection.laddr.port)
        assert running.wait(60) != 0
    head, _, rest = out.read_text().partition("\n\n")
    lines = rest.rpartition("\n\n")[0].splitlines()  # whole events
    broken = events(lines)
    assert "[DONE]" not in broken
    fields = dict(line.lower().split(": ", 1) for line in head.splitlines() if ": " in line)
    place = [line for line in lines if line.startswith("id: ")][-1].removeprefix("id: ")
    name = f"x-twolane-resume: {fields['x-twolane-resume']}"
    _, more, status = curl(url, body, name, f"Last-Event-ID: {place}")
    assert status == 0
    whole = [*broken, *events(more)]
    assert whole[-1] == "[DONE]"

    def told(stream: list[Any]) -> tuple[Any, ...]:
        choices = [event["choices"][0] for event in stream[:-1]]
        logprobs = [choice["logprobs"] for choice in choices]
        return (
            "".join(choice["text"] for choice in choices),
            [token for choice in choices for token in choice["token_ids"]],
            *(
                [each for part in logprobs for each in part[kind]]
                for kind in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            ),
            choices[-1]["finish_reason"],
        )

    assert told(whole) == told(undisturbed)
