"""What serving makes of its process: little for the collector to look at, threads that take turns.

The test's own process is what serves; `conftest` gives it back as it was.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests.deploy.clusters import changed, model_with
from tests.ports import free_range
from twolane.deploy.bundled import model_path
from twolane.deploy.errors import StartError
from twolane.deploy.process.descriptors import MOST
from twolane.deploy.process.serving import serving
from twolane.deploy.spec.settings import RouterSettings, WorkerSettings
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.router.doors.server import RouterServer
from twolane.rpc.listen import port_range
from twolane.rpc.metrics_http import MetricsEndpoint
from twolane.v1 import cluster_pb2

MODEL = model_with(model_dir=str(model_path()), name="m", engine="fake", n_pages=8)
ROUTER = RouterSpec(router_id="r", model=MODEL, settings=RouterSettings(port=0))
WORKER = WorkerSpec(worker_id="w", epoch=1, roles=("prefill",), model=MODEL, routers=())


@pytest.mark.parametrize("spec", [ROUTER, WORKER], ids=["router", "worker"])
async def test_what_was_loaded_before_serving_is_never_collected_again(spec: ProcessSpec) -> None:
    usual = gc.get_threshold()[0]
    async with serving(spec) as where:
        assert where.endpoint
        n_left = len(gc.get_objects())
        assert gc.get_freeze_count() > 10_000
        assert n_left < gc.get_freeze_count() / 10
        assert gc.get_threshold()[0] > usual
        assert gc.isenabled(), "what comes and goes while serving still is"


@pytest.mark.parametrize("spec", [ROUTER, WORKER], ids=["router", "worker"])
async def test_threads_of_a_served_process_wait_a_small_part_of_a_step_for_each_other(
    spec: ProcessSpec,
) -> None:
    async with serving(spec):
        assert sys.getswitchinterval() <= 0.0005


@pytest.mark.parametrize("spec", [ROUTER, WORKER], ids=["router", "worker"])
async def test_what_serves_may_open_as_many_descriptors_as_the_system_allows(
    spec: ProcessSpec,
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    async with serving(spec):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, MOST), hard)


async def test_settings_that_a_controller_tells_before_all_doors_are_open_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configurations = []
    open_admin_doors = RouterServer._open_admin_doors

    async def tell_first(server: RouterServer, stack: AsyncExitStack) -> None:
        configuration = server.router.operations.configuration
        kept = cluster_pb2.ConfigState(revision=1, values={"router.max_queued": "77"})
        configuration.hold(kept)
        configurations.append(configuration)
        await open_admin_doors(server, stack)

    monkeypatch.setattr(RouterServer, "_open_admin_doors", tell_first)
    async with serving(ROUTER):
        (configuration,) = configurations
        assert [its.value for its in configuration.fields(["router.max_queued"])] == ["77"]


async def test_metrics_are_answered_as_soon_as_their_port_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, found = MetricsEndpoint.start, []

    async def start_and_look(endpoint: MetricsEndpoint) -> None:
        await start(endpoint)
        assert endpoint._listener is not None
        url = f"http://127.0.0.1:{endpoint._listener.getsockname()[1]}/metrics"
        with await asyncio.to_thread(urlopen, url, timeout=10) as answer:
            found.append(answer.read())

    monkeypatch.setattr(MetricsEndpoint, "start", start_and_look)
    settings = replace(ROUTER.settings, metrics_port=0)
    async with serving(replace(ROUTER, settings=settings)):
        assert b"twolane_" in found[0]


async def test_a_process_that_cannot_start_freezes_nothing() -> None:
    nowhere = WorkerSpec(
        worker_id="w", epoch=1, roles=("prefill",), model=MODEL, routers=(), bind_host="192.0.2.1"
    )
    nowhere = replace(nowhere, insecure=True)
    with pytest.raises(StartError):
        async with serving(nowhere):
            pass
    assert gc.get_freeze_count() == 0


async def test_no_landing_outlives_a_worker_that_cannot_be_composed() -> None:
    settings = WorkerSettings(decode_rows=1 << 21, step_tokens=1 << 22)
    before = {*threading.enumerate()}
    with pytest.raises(StartError, match="this engine takes at most 1048575 beside a prompt"):
        async with serving(replace(WORKER, roles=("decode",), settings=settings)):
            pass
    assert "landing" not in {thread.name for thread in {*threading.enumerate()} - before}


async def test_a_router_whose_tokenizer_is_damaged_says_so_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    model = changed(MODEL, model_dir=tmp_path)
    with pytest.raises(StartError, match=r"tokenizer\.json is not a tokenizer: .*$") as caught:
        async with serving(replace(ROUTER, model=model)):
            pass
    assert "\n" not in str(caught.value)


async def test_a_router_of_an_agent_refuses_a_port_where_nobody_can_show_a_certificate() -> None:
    """No command has seen what the agent's host makes of it."""
    settings = replace(ROUTER.settings, admin_port=0)
    with pytest.raises(StartError, match="--admin-port takes certificates"):
        async with serving(replace(ROUTER, settings=settings, bind_host="::1", insecure=True)):
            pass


async def test_a_worker_that_routers_of_another_host_could_not_dial_is_refused() -> None:
    far = replace(WORKER, routers=("127.0.0.1:1", "10.77.0.11:7201"))
    with pytest.raises(StartError, match=r"^bind_host is 127\.0\.0\.1, and 10\.77\.0\.11:7201"):
        async with serving(far):
            pass


@pytest.mark.parametrize("spec", [ROUTER, WORKER], ids=["router", "worker"])
async def test_a_process_that_listens_everywhere_must_say_what_others_dial(
    spec: ProcessSpec,
) -> None:
    with pytest.raises(StartError, match="advertise_host is not set"):
        async with serving(replace(spec, bind_host="0.0.0.0", insecure=True)):
            pass
    anywhere = replace(spec, bind_host="0.0.0.0", advertise_host="127.0.0.1", insecure=True)
    async with serving(anywhere) as where:
        assert (where.worker_endpoint or where.endpoint).startswith("127.0.0.1:")


@pytest.mark.parametrize("spec", [ROUTER, WORKER], ids=["router", "worker"])
async def test_every_port_of_a_process_comes_from_the_range(spec: ProcessSpec) -> None:
    ports = free_range(8)
    if isinstance(spec, WorkerSpec):
        settings = replace(spec.settings, transports=("tcp",))
        spec = replace(spec, roles=("decode",), settings=settings)
    async with serving(replace(spec, ports=ports)) as where:
        said = {where.endpoint, where.metrics_endpoint, where.worker_endpoint, where.http_endpoint}
        assert {int(each.rpartition(":")[2]) for each in said if each} <= {*port_range(ports)}
        listening = {
            each.laddr.port
            for each in psutil.Process().net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        }
        assert len(listening & {*port_range(ports)}) == (4 if isinstance(spec, RouterSpec) else 3)


async def test_a_workers_metrics_have_a_range_of_their_own() -> None:
    """A firewall can then tell them from pages and calls."""
    first, last = free_range(8).split("-")
    ports, of_metrics = f"{first}-{int(last) - 1}", f"{last}-{last}"
    settings = replace(WORKER.settings, worker_metrics_ports=of_metrics)
    spec = replace(WORKER, ports=ports, settings=settings)
    async with serving(spec) as where:
        assert where.metrics_endpoint.endswith(f":{port_range(of_metrics)[0]}")
        assert int(where.endpoint.rpartition(":")[2]) in port_range(ports)
        used_up = replace(spec, worker_id="other")
        with pytest.raises(StartError, match=rf"{of_metrics} \(--worker-metrics-ports\) is in use"):
            async with serving(used_up):
                pass


async def test_a_range_that_is_used_up_is_an_error_that_names_it() -> None:
    ports = free_range(1)
    with pytest.raises(StartError, match=rf"every port of {ports} \(--ports\) is in use"):
        async with serving(replace(WORKER, ports=ports)):
            pass
