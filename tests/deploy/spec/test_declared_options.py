"""Every option, from each way to say it to whoever reads it: nothing here names one but where its
value must be a particular one, so a field that is declared an option is covered as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_origin

import click
import pytest
import yaml

from tests.deploy.topologies import read, refusal
from twolane.deploy.__main__ import router, worker
from twolane.deploy.bundled import model_path
from twolane.deploy.cli.flags import said
from twolane.deploy.cli.topology_options import read_options, topology_of
from twolane.deploy.cli.up_command import up
from twolane.deploy.process.compose_worker import on_device, ready_limits
from twolane.deploy.process.engine_host import open_engine
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.declared_options import Declared, declared
from twolane.deploy.spec.resolve import resolve
from twolane.deploy.spec.settings import ClusterSettings, RouterSettings, TimingSpec, WorkerSettings
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.deploy.spec.specs import ModelSpec, RouterSpec, WorkerSpec
from twolane.deploy.spec.topology import Topology
from twolane.deploy.spec.topology_file import write_topology
from twolane.engine.config import EngineConfig
from twolane.engine.fake import FakeEngine, FakeEngineConfig

PARTS: dict[type, str] = {
    ClusterSettings: "",
    RouterSettings: "router",
    TimingSpec: "timing",
    ModelSpec: "workers",
    EngineConfig: "workers",
    WorkerSettings: "workers",
}
OPTIONS = [pytest.param(kind, it, id=it.key) for kind in PARTS for it in declared(kind)]
PAGES_OF_FP8 = ["page_tokens", "kv_dtype"]
PARTICULAR = {
    "model": str(model_path()),
    "launcher": "agents",
    "kv_bytes": 1 << 26,
    "generation_config": "none",
    "ports": "7300-7399",
    "worker_metrics_ports": "7400-7499",
    "store": "rediss://h:1/2",
}


def another(each: Declared) -> Any:
    """A value that it may have and usually has not."""
    if each.key in PARTICULAR:
        return PARTICULAR[each.key]
    if each.option.choices:
        other = next(it for it in reversed(each.option.choices) if it != each.usual)
        return (other,) if get_origin(each.hint) is tuple else other
    if each.hint is bool:
        return not each.usual
    if each.hint is int:
        return each.option.multiple_of or (each.usual or 4) + 1
    if each.hint is float:
        return (each.usual or 0.5) * 1.5
    return "/::1"  # a path too


def as_flags(each: Declared, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [each.flag]
    return [each.flag, str(value[0] if isinstance(value, tuple) else value)]


def from_flags(command: click.Command, flags: list[str]) -> Topology:
    with command.make_context(str(command.name), flags) as context:
        return read_options(said(context), role=None if command is up else "both")


def where_read(kind: type, topology: Topology) -> list[Any]:
    """The objects that such options are read from, in the process that reads them."""
    if kind is ClusterSettings:
        return [topology]
    cluster: ClusterSpec = resolve(topology, cores=1)
    the_router = from_json(RouterSpec, to_json(cluster.router()))
    a_worker = from_json(WorkerSpec, to_json(cluster.workers("h:1")[0]))
    readers: dict[type, list[Any]] = {
        RouterSettings: [the_router.settings],
        TimingSpec: [the_router.timing, a_worker.timing],
        ModelSpec: [a_worker.model],
        EngineConfig: [a_worker.model.config],
        WorkerSettings: [a_worker.settings],
    }
    return readers[kind]


@pytest.mark.parametrize(("kind", "each"), OPTIONS)
def test_an_option_arrives_from_the_command_line_and_from_a_file_alike(
    kind: type, each: Declared, tmp_path: Path
) -> None:
    value = another(each)
    by_flag = from_flags(up, ["--colocated", "1", *as_flags(each, value)])
    written = list(value) if isinstance(value, tuple) else value
    part = {PARTS[kind]: {each.key: written}} if PARTS[kind] else {each.key: written}
    by_key = read(yaml.safe_dump({**part, "pools": [{"role": "both", "workers": 1}]}), tmp_path)
    assert by_flag == by_key == read(write_topology(by_flag), tmp_path)
    for reader in where_read(kind, by_key):
        assert getattr(reader, each.field) == value
    usual = topology_of({"colocated": 1})
    for reader in where_read(kind, usual):
        assert getattr(reader, each.field) != value
    with up.make_context("up", []) as context:
        assert f"{each.flag} " in context.get_help()


@pytest.mark.parametrize(("kind", "each"), OPTIONS)
def test_processes_that_are_started_by_hand_take_the_options_that_they_read(
    kind: type, each: Declared
) -> None:
    of_router = kind in (ClusterSettings, RouterSettings, TimingSpec)
    of_worker = kind is not RouterSettings and each.key != "worker_metrics_port"  # --metrics-port
    is_launchers = each.key in ("launcher", "share_gpus", "seats")
    value = another(each)
    for command, takes_it in ((router, of_router), (worker, of_worker)):
        if takes_it and not is_launchers:
            topology = from_flags(command, as_flags(each, value))
            for reader in where_read(kind, topology):
                assert getattr(reader, each.field) == value
        else:
            assert each.key not in {param.name for param in command.params}


@pytest.mark.parametrize("each", [pytest.param(it, id=it.key) for it in declared(EngineConfig)])
def test_an_engines_option_arrives_in_the_engine(
    each: Declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[EngineConfig] = []

    def load(config: EngineConfig, **_: object) -> FakeEngine:
        configs.append(config)
        return FakeEngine(FakeEngineConfig(page_tokens=64))

    monkeypatch.setattr("twolane.engine.load.load_engine", load)
    monkeypatch.setattr("twolane.engine.load.pick_device", lambda device: device)
    value = another(each)
    (spec,) = resolve(topology_of({"colocated": 1, each.key: value})).workers("h:1")
    with open_engine(on_device(spec), name="w", is_shared=False, ready=ready_limits(spec)):
        (config,) = configs
    assert getattr(config, each.field) == value


def test_a_default_that_is_shown_is_the_one_that_holds() -> None:
    with up.make_context("up", []) as context:
        shown = context.params
    for kind in PARTS:
        for each in declared(kind):
            if shown[each.key] not in (None, False, ()):
                usual = where_read(kind, topology_of({}))
                assert [getattr(it, each.field) for it in usual] == [shown[each.key]] * len(usual)


@pytest.mark.parametrize(
    ("options", "line", "told", "names"),
    [
        ({"pages": 9, "kv_bytes": 9}, 3, "{} and {} both say", ["pages", "kv_bytes"]),
        ({"page_tokens": 8}, 2, "{} is 8; it should be a mult", ["workers.page_tokens"]),
        ({"page_tokens": 16, "kv_dtype": "fp8"}, 3, "{} is 16; with {} fp8", PAGES_OF_FP8),
        ({"exact": True, "weights": "fp8"}, 3, "products of FP8 weights depend on the batch", []),
        ({"engine": "fake", "tensor_parallel": 2}, 3, "a fake .* {} out", ["tensor_parallel"]),
        ({"http_port": 8, "no_http": True}, 3, "{} says .* {} that", ["http_port", "no_http"]),
        ({"lease_s": 0.5}, 1, "{} is 0.5; it must be more than {}", ["lease_s", "heartbeat_s"]),
    ],
)  # fmt: skip
def test_a_refusal_names_options_as_they_were_written(
    options: dict[str, Any], line: int, told: str, names: list[str], tmp_path: Path
) -> None:
    (part,) = {PARTS[kind] for kind in PARTS for it in declared(kind) if it.key in options}
    text = yaml.safe_dump({part: options, "pools": [{"role": "both"}]}, sort_keys=False)
    (refused,) = refusal(text, tmp_path)
    assert re.match(f"t.yaml:{line}: {told.format(*names)}", refused), refused
    flags = [f"--{name.rpartition('.')[2].replace('_', '-')}" for name in names]
    with pytest.raises(click.UsageError, match=f"^{told.format(*flags)}"):
        topology_of({"colocated": 1, **options})


def test_a_refusal_beside_a_file_names_each_option_where_it_stands(tmp_path: Path) -> None:
    base = read("workers: {pages: 9}\npools: [{role: both}]", tmp_path)
    with pytest.raises(click.UsageError, match=r"^pages and --kv-bytes both say"):
        topology_of({"kv_bytes": 9}, base)


Runs = Callable[[list[str]], Any]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """Gives a command its arguments, and returns the spec of the process that it would run."""
    monkeypatch.setenv("HOME", str(tmp_path))
    specs: list[Any] = []
    monkeypatch.setattr("twolane.deploy.__main__.run_process", lambda spec, fd: specs.append(spec))

    def run(arguments: list[str]) -> Any:
        {"router": router, "worker": worker}[arguments[0]](arguments[1:], standalone_mode=False)
        return specs.pop()

    return run


def test_a_process_that_is_started_by_hand_may_read_a_topology(runs: Runs, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        "timing: {lease_s: 9}\nrouter: {max_queued: 7}\nworkers: {kv_dtype: fp8}\n"
        "pools: [{role: prefill, name: readers, step_tokens: 128}]\n"
    )
    spec = runs(["worker", "--topology", str(file), "--pages", "5", "--port", "7"])
    assert (spec.roles, spec.pool, spec.port) == (("prefill",), "readers", 7)
    assert (spec.model.config.kv_dtype, spec.model.config.n_pages) == ("fp8", 5)
    assert (spec.settings.step_tokens, spec.timing.lease_s) == (128, 9)
    spec = runs(["router", "--topology", str(file)])
    assert (spec.settings.max_queued, spec.settings.worker_port) == (7, 7201)
    with pytest.raises(click.UsageError, match="leave --role out, or edit the file"):
        runs(["worker", "--topology", str(file), "--role", "decode"])
    with pytest.raises(click.UsageError, match="of one pool; the topology has prefill, decode"):
        runs(["worker", "--topology", "1p1d"])
