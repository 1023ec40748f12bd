"""Topologies: files and options alike, what is refused, and what the shipped ones amount to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from tests.deploy.clusters import model_with
from tests.deploy.topologies import read, refusal, said
from twolane.deploy.cli.topology_options import topology_of
from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.devices import settled
from twolane.deploy.spec.parse_topology import TopologyError, parse_topology
from twolane.deploy.spec.resolve import resolve
from twolane.deploy.spec.settings import WorkerSettings
from twolane.deploy.spec.topology import given
from twolane.deploy.spec.topology_file import SHIPPED, find_topology, read_topology, write_topology

FOUR = ("0", "1", "2", "3")
FILE = """\
model: bundled
launcher: process
router:
  port: 0
  max_queued: 7
timing:
  lease_s: 9
workers:
  dtype: bfloat16
  kv_bytes: 1000000
  step_tokens: 64
  transports: [unix, tcp]
pools:
  - role: prefill
    name: readers
    workers: 2
    step_tokens: 128
    transports: [tcp]
  - role: decode
    tensor_parallel: 2
    pages: 50
    threads: 3
"""


def test_a_file_says_what_each_worker_and_the_router_are(tmp_path: Path) -> None:
    cluster = resolve(read(FILE, tmp_path), cores=9)
    readers, decode = cluster.pools
    assert [w.worker_id for w in cluster.workers("h:1")] == ["readers-0", "readers-1", "decode-0"]
    assert (readers.roles, decode.roles) == (("prefill",), ("decode",))
    assert {pool.model.config.dtype for pool in cluster.pools} == {"bfloat16"}
    assert (readers.model.config.kv_bytes, readers.model.config.n_pages) == (1_000_000, None)
    assert (decode.model.config.kv_bytes, decode.model.config.n_pages) == (
        None,
        50,
    )  # one goes for the other
    assert (readers.model.config.tensor_parallel, decode.model.config.tensor_parallel) == (1, 2)
    assert (readers.model.config.threads, decode.model.config.threads) == (9 // 4, 3)
    assert (readers.settings.step_tokens, decode.settings.step_tokens) == (128, 64)
    assert (readers.settings.transports, decode.settings.transports) == (("tcp",), ("unix", "tcp"))
    router = cluster.router()
    assert (router.settings.port, router.settings.max_queued, router.timing.lease_s) == (0, 7, 9.0)
    assert {worker.timing.lease_s for worker in cluster.workers("h:1")} == {9.0}


def test_what_a_file_does_not_say_is_left_to_whoever_enforces_it(tmp_path: Path) -> None:
    cluster = resolve(read("pools: [{role: both}]", tmp_path), cores=4)
    (pool,) = cluster.pools
    (worker,) = cluster.workers("h:1")
    model = model_with(model_dir=pool.model.model_dir, name="bundled", threads=4)
    assert (worker.worker_id, worker.model) == ("colocated-0", model)
    assert worker.settings == WorkerSettings()
    assert cluster == ClusterSpec(model=model, pools=(pool,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model: bundled", "model: 3"), "t.yaml:1: model is 3; it should be a valid string"),
        (("  port: 0", "  prot: 0"), "t.yaml:4: there is no field prot; did you mean port?"),
        (("  port: 0", "  port: 70000"), "t.yaml:4: router.port is 70000; it should be less than"),
        (("  port: 0", "  lease_s: 1"), "t.yaml:4: there is no field lease_s; it belongs to timi"),
        (("lease_s: 9", "lease_s: 0.5"), "t.yaml:6: lease_s is 0.5; it must be more than heartbe"),
        (("lease_s: 9", "lease_s: soon"), "t.yaml:7: timing.lease_s is 'soon'; it should be a va"),
        (("  kv_bytes: 1000000", "  kv_bytes: 9\n  pages: 9"), "t.yaml:10: pages and kv_bytes bo"),
        (
            ("[unix, tcp]", "[unix, smoke]"),
            "t.yaml:12: workers.transports[1] is 'smoke'; it should",
        ),
        (("[unix, tcp]", "[]"), "t.yaml:12: workers.transports is []; it"),
        (("role: prefill", "role: prefil"), "t.yaml:14: pools[0].role is 'prefil'; it should be '"),
        (("role: prefill", "workers: 3"), "t.yaml:16: workers is given twice"),
        (("role: prefill", "exact: true"), "t.yaml:14: pools[0].role is missing"),
        (
            ("name: readers", "name: De Coder"),
            "t.yaml:15: pools[0].name is 'De Coder'; it should m",
        ),
        (("name: readers", "name: decode"), "t.yaml:19: pools[0] is called decode already: give"),
        (("name: readers", "name: router"), "t.yaml:15: the router is called router already"),
        (("workers: 2", "workers: 0"), "t.yaml:16: pools[0].workers is 0; it should be greater"),
        (("workers: 2", "workers: 10001"), "t.yaml:16: pools[0].workers is 10001; it should be le"),
        (
            ("workers: 2", "workers: '2'"),
            "t.yaml:16: pools[0].workers is '2'; it should be a valid",
        ),
        (("workers: 2", "model: m"), "t.yaml:16: there is no field model; it is the whole cluster"),
        (("role: decode", "role: prefill"), "t.yaml:13: 3 prefill and 0 decode workers can answer"),
        (("tensor_parallel: 2", "tensor_parallel: 9"), "t.yaml:20: pools[1].tensor_parallel is 9;"),
        (
            ("tensor_parallel: 2", "weights: fp8"),
            "t.yaml:20: weights is fp8 in pool decode and auto",
        ),
        (("pages: 50", "pages:\n      - 1"), "t.yaml:21: pools[1].pages is [1]; it should be a v"),
        (("threads: 3", "threads: [3"), "t.yaml:22: not YAML: expected ',' or ']'"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_named_with_its_line(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    assert change[0] in FILE
    told = refusal(FILE.replace(*change, 1), tmp_path)
    assert any(line.startswith(message) for line in told), told
    if "YAML" not in message:
        assert read(FILE, tmp_path)  # it is the change that was refused


def test_pools_that_say_the_default_in_words_are_not_strangers(tmp_path: Path) -> None:
    assert read("pools: [{role: prefill, dtype: auto}, {role: decode, exact: false}]", tmp_path)
    assert read("pools: [{role: both, name: a, exact: true}, {role: both, name: b}]", tmp_path)
    told = refusal("pools: [{role: both}, {role: decode, exact: true}]", tmp_path)
    assert told[0].startswith("t.yaml:1: exact is True in pool decode and False in pool colocated")


@pytest.mark.parametrize(
    ("prefill", "decode", "message"),
    [
        (
            "kv_dtype: fp8",
            "pages: 9",
            "kv_dtype is auto in pool decode and fp8 in pool prefill: wh",
        ),
        (
            "exact: true",
            "exact: true, tensor_parallel: 2",
            "tensor_parallel is 2 in pool decode an",
        ),
        ("exact: true", "exact: true, kv_dtype: fp8", "kv_dtype is fp8 in pool decode and auto in"),
        ("engine: fake", "engine: fake, tensor_parallel: 2", "a fake engine has no ranks"),
        ("kv_dtype: auto", "kv_dtype: fp8", ""),
        ("tensor_parallel: 4, kv_dtype: fp8", "tensor_parallel: 2, kv_dtype: fp8", ""),
        ("tensor_parallel: 2, page_tokens: 16", "page_tokens: 64", ""),
    ],
)
def test_pools_may_differ_in_what_pages_can_be_made_of(
    prefill: str, decode: str, message: str, tmp_path: Path
) -> None:
    text = f"pools: [{{role: prefill, {prefill}}},\n  {{role: decode, {decode}}}]"
    if not message:
        assert read(text, tmp_path)
        return
    (told,) = refusal(text, tmp_path)
    assert told.startswith(f"t.yaml:2: {message}"), told


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "launcher: slurm\nrouter: 7200\npools:\n  - role: reader\n    pages: 0\n"
    assert refusal(text, tmp_path) == [
        "t.yaml:1: launcher is 'slurm'; it should be 'ray', 'process', 'agents' or 'kubernetes'",
        "t.yaml:2: router must be fields with values",
        "t.yaml:4: pools[0].role is 'reader'; it should be 'prefill', 'decode' or 'both'",
        "t.yaml:5: pools[0].pages is 0; it should be greater than or equal to 1",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.yaml: pools is missing"),
        ("# nothing\n", "t.yaml: pools is missing"),
        ("just words", "t.yaml:1: a topology must be fields with values"),
        ("pools:\n", "t.yaml:1: pools is empty; it should be"),
        ("pools: []\n", "t.yaml:1: 0 prefill and 0 decode workers can answer nothing"),
        ("pools: [prefill, decode]\n", "t.yaml:1: pools[0] must be fields with values"),
        ("{1: 2}", "t.yaml:1: "),
        ("pools: !!python/object:os.system {}\n", "t.yaml:1: not YAML: could not determine a cons"),
        ("model: \x00\n", "t.yaml: "),
        ("model: m\npools: &a [*a]\n", "t.yaml:2: not YAML: the alias *a stands within what it"),
        (
            "model: m\npools: &a\n  - {role: both, name: *a}\n",
            "t.yaml:3: not YAML: the alias *a st",
        ),
        ("model: m\npools: [&a {*a : 1}]\n", "t.yaml:2: not YAML: the alias *a stands within"),
        ("[" * 5000, "t.yaml:1: not YAML: it is nested more than 50 deep"),
        ("--- {}\n--- {}\n", "t.yaml:2: not YAML: but found another document"),
    ],
)
def test_a_file_that_is_no_topology_is_refused(text: str, message: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path)[0].startswith(message)


def test_an_alias_beside_what_it_stands_for_is_read(tmp_path: Path) -> None:
    text = (
        "pools: [&a {role: prefill, name: a, transports: &t [tcp]}, {role: decode, transports: *t}]"
    )
    assert {pool.transports for pool in read(text, tmp_path).pools} == {("tcp",)}


def test_a_topology_is_found_by_its_path_or_by_a_name_that_we_ship(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(FILE)
    assert find_topology(str(tmp_path / "mine.yaml")) == tmp_path / "mine.yaml"
    assert find_topology("2p2d") == SHIPPED / "2p2d.yaml"
    with pytest.raises(StartError, match="no file 3p; a topology is a YAML file, or one of 1p1d, "):
        find_topology("3p")


SHIPPED_KINDS: dict[str, list[tuple[str, tuple[str, ...], int, int]]] = {
    "laptop": [("prefill", ("prefill",), 1, 1), ("decode", ("decode",), 1, 1)],
    "colocated": [("colocated", ("prefill", "decode"), 2, 1)],
    "1p1d": [("prefill", ("prefill",), 1, 1), ("decode", ("decode",), 1, 1)],
    "2p2d": [("prefill", ("prefill",), 2, 1), ("decode", ("decode",), 2, 1)],
    "tp2": [("colocated", ("prefill", "decode"), 1, 2)],
    "tp2-to-tp1": [("prefill", ("prefill",), 1, 2), ("decode", ("decode",), 2, 1)],
}


def test_the_shipped_topologies_are_what_they_are_called() -> None:
    assert {path.stem for path in SHIPPED.iterdir()} == {*SHIPPED_KINDS}
    for name, expected in SHIPPED_KINDS.items():
        cluster = resolve(read_topology(find_topology(name)), cores=2)
        kinds = [
            (p.name, p.roles, p.n_workers, p.model.config.tensor_parallel) for p in cluster.pools
        ]
        assert kinds == expected, name


def test_the_shipped_topologies_take_a_gpu_for_each_rank() -> None:
    for name, n_gpus in {"laptop": 0, "colocated": 2, "tp2": 2, "tp2-to-tp1": 4}.items():
        cluster = settled(resolve(read_topology(find_topology(name)), cores=2), FOUR)
        assert cluster.devices == list(FOUR[:n_gpus]), name


@pytest.mark.parametrize("name", sorted(SHIPPED_KINDS))
def test_what_is_written_is_read_as_the_same(name: str, tmp_path: Path) -> None:
    topology = read_topology(find_topology(name))
    assert read(write_topology(topology), tmp_path) == topology
    whole = read(FILE, tmp_path)
    assert read(write_topology(whole), tmp_path) == whole


def test_the_guides_example_is_a_topology(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    example = guide.partition("```yaml\n")[2].partition("```")[0]
    topology = read(example, tmp_path)
    assert [pool.role for pool in topology.pools] == ["prefill", "decode"]


def test_options_make_the_topology_that_a_file_would(tmp_path: Path) -> None:
    options = said("--prefill", "2", "--decode", "1", "--kv-dtype", "fp8", "--port", "0",
                   "--transport", "unix", "--lease-s", "8", "--launcher", "process")  # fmt: skip
    text = """\
    launcher: process
    router: {port: 0}
    timing: {lease_s: 8}
    workers: {kv_dtype: fp8, transports: [unix]}
    pools: [{role: prefill, workers: 2}, {role: decode}]
    """
    assert topology_of(options) == read(text, tmp_path)
    assert topology_of({}) == read("pools: [{role: prefill}, {role: decode}]", tmp_path)
    assert topology_of({"decode": 2}) == topology_of({"prefill": 1, "decode": 2})
    assert topology_of({"prefill": 2}) == topology_of({"prefill": 2, "decode": 1})
    assert topology_of({"colocated": 3}) == read("pools: [{role: both, workers: 3}]", tmp_path)
    mixed = topology_of({"colocated": 1, "prefill": 1})
    assert [(pool.role, pool.workers) for pool in mixed.pools] == [("prefill", 1), ("both", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checksums": False, "transports": ("tcp",)}, "always summed over networks .tcp."),
        ({"prefill": 2, "decode": 0}, "2 prefill and 0 decode workers .* or one that does both"),
        ({"pages": 3, "kv_bytes": 3}, "both say how large"),
        ({"lease_s": 0.1}, "--lease-s is 0.1; it must be more than --heartbeat-s"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(click.UsageError, match=message):
        topology_of(options)


def test_options_beside_a_file_change_what_its_pools_leave_open(tmp_path: Path) -> None:
    base = read(FILE.replace("threads: 3", "checksums: true"), tmp_path)
    changed = topology_of({"model": "m", "port": 5, "dtype": "float32", "share_gpus": True}, base)
    assert (changed.model, changed.router.port, changed.share_gpus) == ("m", 5, True)
    assert {changed.options_of(pool).dtype for pool in changed.pools} == {"float32"}
    assert changed.router.max_queued == 7
    assert changed.pools == base.pools
    assert topology_of({}, base) == base
    for options, message in (
        ({"decode": 2}, "the topology says what workers there are: leave --decode out, or edit"),
        (
            {"step_tokens": 9},
            r"pool readers .* a step_tokens of its own, which is 128: .*--step-tok",
        ),
        ({"transports": ("shm",)}, "leave --transport out"),
        ({"checksums": False}, "checksums of its own, which is True: leave --no-checksums out"),
    ):
        with pytest.raises(click.UsageError, match=message):
            topology_of(options, base)


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        ({}, 7202),
        ({"port": 9000}, 9002),
        ({"port": 0}, 0),
        ({"port": 65534}, 0),
        ({"http_port": 8000}, 8000),
        ({"no_http": True}, None),
    ],
)
def test_the_http_door_is_two_ports_above_that_of_grpc(
    flags: dict[str, Any], port: int | None
) -> None:
    assert resolve(topology_of(flags)).router().settings.http_door == port


def test_an_http_port_without_the_door_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="give one"):
        topology_of({"http_port": 8000, "no_http": True})
    text = "router: {http_port: 8000, no_http: true}\npools: [{role: both}]"
    (line,) = refusal(text, tmp_path)
    assert "give one" in line


def test_parts_say_only_what_was_given() -> None:
    topology = parse_topology({"pools": [{"role": "both", "pages": 5}], "workers": {"kv_bytes": 9}})
    assert given(topology.options_of(topology.pools[0])) == {"pages": 5}


def test_workers_flip_between_pools_of_equal_options_alone() -> None:
    pools: list[dict[str, Any]] = [{"role": "prefill"}, {"role": "decode"}]
    assert not any(pool.flips for pool in resolve(parse_topology({"pools": pools})).pools)
    its = {"pools": pools, "scaler": {"autoscale": True}}
    assert all(pool.flips for pool in resolve(parse_topology(its)).pools)
    other = [pools[0], {**pools[1], "decode_rows": 8}]
    cluster = resolve(parse_topology({**its, "pools": other}))
    assert not any(pool.flips for pool in cluster.pools)
    asked = {"pools": other, "scaler": {"flips": True}}
    with pytest.raises(StartError, match="only flip between pools with equal options"):
        resolve(parse_topology(asked))
    none = {"pools": pools, "scaler": {"autoscale": True, "flips": False}}
    assert not any(pool.flips for pool in resolve(parse_topology(none)).pools)


@pytest.mark.parametrize(
    ("scaler", "why"),
    [
        ({"min_prefill": 3, "max_prefill": 2}, "min_prefill is 3, more than max_prefill"),
        ({"min_prefill": 0}, "only both pools together may go to zero"),
        ({"budgett": 3}, "budget"),
    ],
)
def test_bounds_of_a_scaler_that_contradict_each_other_are_refused(
    scaler: dict[str, Any], why: str
) -> None:
    topology = {"pools": [{"role": "prefill"}, {"role": "decode"}], "scaler": scaler}
    with pytest.raises(TopologyError, match=why):
        parse_topology(topology)
