from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from twolane.cli import HELP
from twolane.cli.app import app
from twolane.status import DrainBlocker
from twolane.testing.extras import MODEL_MODULES, SERVE_MODULES


@pytest.fixture(autouse=True)
def endpoint(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.endpoint)


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)


def test_generate_streams_the_answer_to_standard_output() -> None:
    result = run("generate", "once upon", "--temperature", "0", "--stop", "x", "--seed", "3")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "once upon \n", "")


def test_generate_without_streaming_and_from_standard_input() -> None:
    assert run("generate", "a b", "--no-stream").stdout == "a b \n"
    assert run("generate", "-", stdin="c d").stdout == "c d \n"


def test_generate_json_is_the_whole_completion_in_one_line() -> None:
    (line,) = run("generate", "a b", "--json", "--max-tokens", "7").stdout.splitlines()
    value = json.loads(line)
    assert value["text"] == "a b "
    assert value["finish_reason"] == "length"
    assert value["ledger"]["output_tokens"] == 2
    assert [token["token_id"] for token in value["tokens"]] == [100, 101]


def test_sampling_options_arrive(door: Door) -> None:
    value = json.loads(
        run("generate", "opts", "--json", "--max-tokens", "7", "--top-k", "3", "--stop", "a").stdout
    )
    sampling = door.script.requests[value["request_id"]].sampling
    assert (sampling.max_tokens, sampling.top_k, list(sampling.stop)) == (7, 3, ["a"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate", "invalid"], 2, "Error: too long"),
        (["generate", "unknown model"], 2, "`twolane models` lists what is served"),
        (["generate", "a", "--temperature", "-1"], 2, "temperature is -1.0; it must be"),
        (["generate", "denied"], 2, "Error: not from here"),
        (["generate", "overloaded"], 3, "Error: queue is full (try again in 1.5 s)"),
        (["generate", "silent", "--timeout-s", "0.1"], 4, "within 0.1 s"),
        (["generate", "internal"], 1, "Error: NaN logits"),
        (["generate", "cancelled"], 130, "an operator cancelled it"),
        (["status", "--endpoint", "127.0.0.1:1"], 3, "Start one with `twolane up`"),
        (
            ["drain", "decode-0"],
            2,
            "this is for operators, and no cluster of yours on this machine",
        ),
        (["generate", "a", "--max-tokens", "many"], 2, "not a valid integer"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_status_shows_workers_pages_and_requests(door: Door) -> None:
    out = run("status", "--endpoint", door.admin).stdout
    for part in (
        "decode-0",
        "alive",
        "quarantined",
        "90",
        "r1",
        "finished 9",
        "20.0",
        ":7202/v1",
        "shm",
        "cuda_ipc: refused",
    ):
        assert part in out
    for part in ("writers", "GPU-1b2c3d4e 1"):  # its pool, and its GPUs, told apart
        assert part in out
    assert "dropped" not in out, "late messages of a client that left are no error"


def test_status_json_keeps_the_epoch_whole(door: Door) -> None:
    value = json.loads(run("status", "--json", "--endpoint", door.admin).stdout)
    assert next(iter(value.items())) == ("schema", "twolane.v1.GetClusterStatusResponse")
    assert value["metrics_endpoint"] == "127.0.0.1:9100"
    assert value["workers"][0]["metrics_endpoint"] == "127.0.0.1:9101"
    assert value["workers"][0]["worker"]["epoch"] == str(2**63 + 5)
    assert value["workers"][0]["load"]["pages"]["pinned"] == "3"
    assert value["requests_by_state"] == {"decode": "1"}


def test_status_at_the_clients_door_shows_what_clients_may_know() -> None:
    out = run("status").stdout
    for part in ("serves tiny", "decode", "alive", "1"):
        assert part in out
    value = json.loads(run("status", "--json").stdout)
    assert value["workers"] == [{"state": "alive", "role": "decode", "workers": 1}]


def test_models_and_drain(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tiny" in run("models").stdout
    assert json.loads(run("models", "--json").stdout)[0]["vocab_size"] == 512
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.admin)
    assert run("drain", "decode-0").stdout == "decode-0 is draining\n"
    assert run("drain", "decode-0", "--undo").stdout == "decode-0 takes new requests again\n"
    assert door.script.drained[-2:] == [("decode-0", False), ("decode-0", True)]
    assert "no such worker" in run("drain", "nobody").stderr


def test_drain_waits_for_the_ticket_and_names_what_is_in_the_way(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.admin)
    assert run("drain", "decode-0", "--wait", "--hand-over").stdout.splitlines() == [
        "decode-0: has been told to drain",
        "decode-0: 2 requests (r1, r2) (at most 12 s)",
        "decode-0: nothing is left",
        "decode-0 may be killed: ticket 8000000000000005-3",
    ]
    assert door.script.hands_over
    told = run("drain", "decode-0", "--wait", "--take").stdout
    assert told.endswith("decode-0 is yours to kill: ticket 8000000000000005-3\n")
    assert door.script.taken[-1] == ("decode-0", 3)
    out = run("drain", "decode-0", "--wait", "--json").stdout
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0] is None
    assert lines[1]["blockers"] == [{"kind": "rows", "count": 2, "names": ["r1", "r2"]}]
    assert lines[-1]["has_ticket"]


@pytest.mark.parametrize(
    ("blocker", "words"),
    [
        (DrainBlocker("rows", 1, ("r1",)), "1 request (r1)"),
        (DrainBlocker("rows", 3, ("r1", "r2")), "3 requests (r1, r2, …)"),
        (DrainBlocker("step", 1), "1 step under way"),
        (DrainBlocker("routers", 1, ("router-0",)), "1 router that has not confirmed that it "),
        (DrainBlocker("of a later version", 2), "2 of a later version"),
    ],
)
def test_what_is_in_the_way_of_a_drain_is_a_phrase(blocker: DrainBlocker, words: str) -> None:
    assert str(blocker).startswith(words)


def test_drain_that_is_not_safe_in_time_says_why_and_exits_with_5(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.admin)
    monkeypatch.setattr(door.script, "never_safe", True)
    told = ""
    for timeout_s in ("0.3", "3", "30"):  # on a busy machine nothing may have come by then
        done = run("drain", "decode-0", "--wait", "--timeout-s", timeout_s)
        assert done.exit_code == 5
        told = f"not be killed yet, after {timeout_s} s: 2 requests (r1, r2)"
        if told in done.stderr:
            break
    assert told in done.stderr


def test_drain_of_another_incarnation_is_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.admin)
    n_drained = len(door.script.drained)
    for other in ("80000000", "8000000000000004", str(2**63 + 4), "x"):
        done = run("drain", "decode-0", "--expect-epoch", other)
        assert (done.exit_code, "was restarted" in done.stderr) == (
            (0, False) if other == "80000000" else (2, True)
        )
    assert len(door.script.drained) == n_drained + 1
    for arguments in (("--undo", "--wait"), ("--take",)):
        assert run("drain", "decode-0", *arguments).exit_code == 2


def test_without_an_endpoint_the_operators_socket_of_this_machine_is_taken(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("TWOLANE_ENDPOINT")
    for name in ("twolane-1-dead", "twolane-2-live", "twolane-3-live"):
        (folder / name).mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "twolane-1-dead" / "admin.sock"))
    assert run("drain", "decode-0").exit_code == 3, "there is none"
    path = Path(door.admin.removeprefix("unix:"))
    (folder / "twolane-2-live" / "admin.sock").symlink_to(path)
    assert "decode-0" in run("status").stdout
    assert run("drain", "decode-0").stdout == "decode-0 is draining\n"
    (folder / "twolane-3-live" / "admin.sock").symlink_to(path)
    result = run("status")
    assert result.exit_code == 3
    first, *listed = result.stderr.splitlines()
    assert first.endswith(
        "several clusters of yours run here; name one with --endpoint (in Python endpoint=…):"
    )
    socket_path = f"unix:{folder}/twolane-2-live/admin.sock"
    assert re.fullmatch(rf"  {socket_path}  since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d", listed[0])


def test_chat_keeps_the_conversation_and_survives_a_refusal(door: Door) -> None:
    result = run("chat", "--system", "be kind", stdin="hello\nagain\n/clear\nnew\n/quit\n")
    assert result.exit_code == 0
    chats = [r.chat for r in door.script.requests.values() if r.WhichOneof("prompt") == "chat"]
    lines = [[m.content for m in chat.messages] for chat in chats[-3:]]
    assert lines == [
        ["be kind", "hello"],
        ["be kind", "hello", "", "again"],
        ["be kind", "new"],
    ]


def test_chat_says_when_an_answer_is_cut_off() -> None:
    result = run("chat", stdin="hello\n/quit\n")
    assert "cut off at its length; --max-tokens sets it" in result.stderr


@pytest.mark.parametrize(
    ("endpoint", "wanted"),
    [
        ("7480", "it must be HOST:PORT"),
        ("http://localhost:7480", "without http://"),
        ("localhost", "it must be HOST:PORT"),
        ("localhost:", "it must be HOST:PORT"),
        ("localhost:http", "it must be HOST:PORT"),
        ("::1:7480", "it must be HOST:PORT"),
        ("localhost:7480/v1", "it must be HOST:PORT"),
        ("localhost:99999", "it must be HOST:PORT"),
    ],
)
def test_an_endpoint_that_is_spelt_otherwise_is_told_what_is_wanted(
    endpoint: str, wanted: str
) -> None:
    result = run("generate", "a", "--endpoint", endpoint)
    assert result.exit_code == 2
    assert f"endpoint is '{endpoint}'; " in result.stderr
    assert wanted in result.stderr


@pytest.mark.parametrize("width", [30, 50, 79, 120])
def test_nothing_of_a_status_is_cut_in_a_narrow_terminal(width: int, door: Door) -> None:
    environment = {**os.environ, "COLUMNS": str(width)}
    command = [sys.executable, "-m", "twolane.cli", "status", "--endpoint", door.admin]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    for word in ("decode-0", "alive", "quarantined", "90", "writers", "refused", "r1", "shm"):
        assert word in words
    assert "…" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= width


def test_a_terminal_without_the_characters_gets_others() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "twolane.cli", "chat"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, input="/quit\n", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiny ? /clear forgets" in done.stdout


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    code = (
        "import sys\nsys.modules['rich'] = None\n"
        "sys.modules['rich.console'] = None\nfrom twolane.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'twolane[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[], ["up"], ["generate"], ["status"], ["drain"]])
@pytest.mark.parametrize("there", [{"click", "rich"}, set()], ids=["cli", "base"])
def test_help_needs_no_extra(command: list[str], there: set[str], tmp_path: Path) -> None:
    missing = {*SERVE_MODULES, *MODEL_MODULES, "ray"} - there
    site = f"import sys\nsys.modules.update(dict.fromkeys({sorted(missing)}))\n"
    (tmp_path / "sitecustomize.py").write_text(site)
    arguments = [sys.executable, "-m", "twolane.cli", *command, "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: twolane")
    if not there:
        assert "needs click: pip install 'twolane[" in done.stdout
    elif command == ["up"]:
        assert "--prefill" in done.stdout


def test_the_help_without_an_extra_lists_the_commands_as_they_are() -> None:
    shown = dict(re.findall(r"^  ([\w-]+) +(.+)$", HELP, flags=re.MULTILINE))
    assert shown == {name: it.get_short_help_str(100) for name, it in app.commands.items()}


def test_ctrl_c_cancels_the_request_and_exits_130(door: Door) -> None:
    command = [sys.executable, "-m", "twolane.cli", "generate", "forever"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(2) == b"x "
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"\n"
    request_id = next(k for k, r in reversed(door.script.requests.items()) if r.text == "forever")
    end = time.monotonic() + 60
    while request_id not in door.script.ended:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert door.script.ended[request_id] == "left"


def test_watch_redraws_in_a_terminal_until_ctrl_c(door: Door) -> None:
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "twolane.cli", "status", "--watch", "--endpoint", door.admin]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"decode-0") < 8:  # four tables, drawn twice
            seen += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    os.close(terminal)


def test_generate_takes_token_ids() -> None:
    assert run("generate", "--token-ids", "1,2,3").stdout == "1 2 3 \n"
    assert "like 1,2,3" in run("generate", "--token-ids", "1,b").stderr
    assert "Missing argument" in run("generate").stderr


def test_an_input_that_is_not_utf_8_is_told() -> None:
    result = CliRunner().invoke(app, ["generate", "-"], input=b"a\xff")
    assert (result.exit_code, "input is not UTF-8" in result.stderr) == (2, True)


def test_an_error_in_the_middle_of_an_answer_gets_a_line_of_its_own() -> None:
    result = run("generate", "fails late")
    assert (result.exit_code, result.stdout) == (3, "one two \n")


def test_status_hides_the_workers_that_are_gone(door: Door) -> None:
    out = run("status", "--endpoint", door.admin).stdout
    assert "decode-0" in out
    assert "prefill-9" not in out
    assert "prefill-9" in run("status", "--all", "--endpoint", door.admin).stdout


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["--launcher", "process"], "torch"),
        (["--launcher=ray"], "ray"),
        ([], "ray"),
    ],
)
def test_up_without_its_extra_names_what_is_missing(
    arguments: list[str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else there(name)
    )
    result = run("up", *arguments)
    assert result.exit_code == 1
    assert f"serving needs {missing}" in result.stderr
    assert "pip install 'twolane[serve]'" in result.stderr
