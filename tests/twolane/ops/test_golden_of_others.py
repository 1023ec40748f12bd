"""What the commands print that are for clients, or need no cluster: to a terminal, into a pipe, and
as JSON. What differs from run to run stands as a word in capitals."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import grpc
import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.test_golden_output import COMMANDS, ENVIRONMENTS, GOLDEN, check
from twolane.cli.app import app
from twolane.cli.examples import leaves
from twolane.config import CONTROLLER_SOCKET_NAME
from twolane.deploy.cli.plan_command import plan as planner
from twolane.deploy.cli.up_command import up as launcher_up
from twolane.v1 import agent_pb2, agent_pb2_grpc

# The last line is the command; those before it prepare what it finds.
OTHERS: dict[str, tuple[str, ...]] = {
    "generate": ("generate 'Once upon a time' --temperature 0",),
    "chat": ("chat --temperature 0",),
    "models": ("models",),
    "bundle": ("bundle incident.tar.gz",),
    "completion": ("completion bash",),
    "up": ("up --print-topology --prefill 2 --model bundled --launcher process",),
    "plan": ("plan --trace trace.csv --slo 300/15",),
    "down": ("down --yes --timeout-s 30",),
    "fence_host": ("fence --host node-b --i-saw-it-off --yes",),
    "fence_host_dry": ("fence --host node-b --i-saw-it-off --dry-run",),
    "auth_create_key": ("auth create-key --tenant acme --tokens-per-min 60000 --expires-in 30d",),
    "auth_list": (
        "auth create-key --tenant acme --weight 2 --concurrent 8",
        "auth create-key --role operator",
        "auth list",
    ),
    "auth_revoke": ("auth create-key --tenant acme", "auth revoke KEY_ID"),
    "auth_whoami": ("auth whoami",),
    "certs_init": ("certs init --dir ca",),
    "certs_issue": (
        "certs init --dir ca",
        "certs issue router/router-0 worker/decode-0 --host gpu-a --dir ca",
    ),
    "certs_request": ("certs request worker/decode-0 --host 10.0.0.6 --dir own",),
    "certs_sign": (
        "certs init --dir ca",
        "certs request worker/decode-0 --host 10.0.0.6 --dir own",
        "certs sign own/decode-0.csr --yes --dir ca",
    ),
    "certs_renew": ("certs init --dir ca", "certs issue worker/a --dir ca", "certs renew --dir ca"),
    "certs_nobody": ("certs init --dir ca", "certs nobody --dir ca"),
    "context_list": ("context list",),
    "context_use": ("context use staging",),
    "context_show": ("context show staging",),
}
ITSELF: dict[str, click.Command] = {"up": launcher_up, "plan": planner}  # what the command becomes
PLAIN = [name for name in ENVIRONMENTS if name != "json"]
# A conversation, whose answers programs get from `generate`; and a program of the shell.
WITHOUT_JSON = {"chat", "completion"}
TYPED = {"chat": "Once upon a time\n/quit\n"}
ANSWERS = {"generate", "chat"}  # which end as the model ends them
AT_THE_OPERATORS = {"bundle"}
AT_THE_LAUNCHER = {"down", "fence_host", "fence_host_dry"}
CONTEXTS = """current = "production"
[contexts.production]
endpoint = "llm.example.com:7200"
api_key = "tl_3f9a2c71d04b_abc"
[contexts.staging]
endpoint = "10.0.0.9:7200"
ca = "ca.crt"
cert = "web.crt"
key = "web.key"
"""
TRACE = "arrival_ms,prompt_tokens,output_tokens\n" + "".join(
    f"{n * 40},512,64\n" for n in range(50)
)
VARYING = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00)?", "TIME"),
    (r"tl_[A-Za-z0-9]+_[\w-]+", "API_KEY"),
    (r'"request_id": "[^"]+"', '"request_id": "ID"'),
    (r'("\w+_s": )0\.\d{4,}', r"\1SECONDS"),
]


def command_of(line: str) -> str:
    """The words of the command in it: `config set` of `config set log_level=debug`."""
    words = line.split()
    names = {*leaves(app)}
    found = (" ".join(words[:n]) for n in range(len(words), 0, -1))
    return next(name for name in found if name in names)


# the JSON of `up` is of events: test_golden_of_up.py
CASES = [
    (name, kind)
    for name in OTHERS
    for kind in (PLAIN if name in {"up", *WITHOUT_JSON} else ENVIRONMENTS)
]


def test_every_command_has_its_output_in_a_file() -> None:
    lines = [*COMMANDS.values(), *(lines[-1] for lines in OTHERS.values())]
    assert {command_of(line) for line in lines} == {*leaves(app)}


def test_every_command_has_json_and_each_kind_in_a_file_and_no_file_is_left_over() -> None:
    """The list is the CLI's own."""
    names = {**COMMANDS, **{name: lines[-1] for name, lines in OTHERS.items()}}
    names["up_events"] = "up"
    files = {(file.name.split(".")[0], file.name.split(".")[1]) for file in GOLDEN.iterdir()}
    assert {name for name, _ in files} == names.keys()
    for words, command in leaves(app).items():
        its = {name for name, line in names.items() if command_of(line) == words}
        options = (ITSELF.get(words) or command).params
        has_json = any("--json" in each.opts for each in options)
        assert has_json == (words not in WITHOUT_JSON), words
        wanted = {*ENVIRONMENTS} if has_json else {*PLAIN}
        assert {kind for name, kind in files if name in its} == wanted, words
        for name in its - {"up", "up_events"}:
            assert {kind for of, kind in files if of == name} == wanted, name


@pytest.fixture
def home(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TWOLANE_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TWOLANE_API_KEY", "tl_a_b")
    (tmp_path / ".config/twolane").mkdir(parents=True)
    (tmp_path / ".config/twolane/config.toml").write_text(CONTEXTS)
    (tmp_path / "trace.csv").write_text(TRACE)
    return tmp_path


def run(line: str, name: str, environment: dict[str, str], home: Path) -> Result:
    command: click.Command = ITSELF.get(name, app)
    arguments = shlex.split(line)[name in ITSELF :]
    typed = TYPED.get(name)
    runner = CliRunner(env=environment)
    done = runner.invoke(command, arguments, input=typed, obj=home, catch_exceptions=False)
    assert done.exit_code == 0, (line, done.output)
    return done


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_output_is_as_it_was_looked_at(
    name: str, kind: str, door: Door, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = door.admin if name in AT_THE_OPERATORS else door.endpoint
    monkeypatch.setenv("TWOLANE_ENDPOINT", endpoint)
    *before, line = OTHERS[name]
    told = ""
    for each in before:
        told = run(each, name, {}, home).stdout
    if "KEY_ID" in line:
        line = line.replace("KEY_ID", told.split("_")[1])
    with ExitStack() as stack:
        if name in AT_THE_LAUNCHER:
            line += f" --endpoint {stack.enter_context(launcher(home / 'run'))}"
        line += " --json" * (kind == "json")
        done = run(line, name, ENVIRONMENTS[kind], home)
    if kind == "pipe":
        assert "\x1b" not in done.stdout
        lines = [] if name in ANSWERS else done.stdout.splitlines()
        assert all(line == line.rstrip() for line in lines)
    if kind == "json":
        json.loads(done.stdout)
    check(name, kind, steady(done.stdout, home))


def steady(told: str, home: Path) -> str:
    """The same in each run."""
    told = told.replace(str(home), "HOME")
    keys = home / "keys.yaml"
    ids = re.findall(r"\b[0-9a-f]{12}\b", keys.read_text()) if keys.exists() else []
    for key_id, n in zip(dict.fromkeys(ids), itertools.count(1), strict=False):
        told = told.replace(key_id, f"KEY_{n:08}")
    for pattern, word in VARYING:
        told = re.sub(pattern, word, told)
    return told


@contextmanager
def launcher(folder: Path) -> Iterator[str]:
    """The socket of one whose cluster stops as soon as it is asked to, and whose hosts are off."""

    class Launcher(agent_pb2_grpc.ControllerServiceServicer):
        def StopCluster(
            self, request: agent_pb2.StopClusterRequest, context: grpc.ServicerContext
        ) -> agent_pb2.StopClusterResponse:
            shutil.rmtree(folder)
            return agent_pb2.StopClusterResponse()

        def SayHostOff(
            self, request: agent_pb2.SayHostOffRequest, context: grpc.ServicerContext
        ) -> agent_pb2.SayHostOffResponse:
            return agent_pb2.SayHostOffResponse(proof=f"{request.host} is off: proof of class C")

    folder.mkdir()
    endpoint = f"unix:{folder / CONTROLLER_SOCKET_NAME}"
    server = grpc.server(ThreadPoolExecutor(1))
    agent_pb2_grpc.add_ControllerServiceServicer_to_server(Launcher(), server)
    server.add_insecure_port(endpoint)
    server.start()
    yield endpoint
    server.stop(None).wait()
