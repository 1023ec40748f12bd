"""What `twolane up` refuses to start, and what it says then."""

from __future__ import annotations

import socket
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.deploy.clusters import cluster_with, model_with
from tests.deploy.test_up_process import FAKE, ONE, command
from twolane.deploy.cli.up_command import up
from twolane.deploy.errors import StartError
from twolane.deploy.spec.devices import check_gpus, settled


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "/nowhere"], 1, "no directory /nowhere; a model is"),
        (["--model", str(Path(__file__).parent)], 1, "has no config.json"),
        (["--prefill", "1", "--decode", "0"], 2, "can answer nothing"),
        (["--pages", "5", "--kv-bytes", "5"], 2, "give one"),
        (
            ["--lease-s", "0.1"],
            2,
            "--lease-s is 0.1; it must be more than --heartbeat-s, which is 1",
        ),
        (
            ["--host", "192.0.2.1", "--insecure"],
            1,
            "(--port): 192.0.2.1 is not an address of this machine",
        ),
        (["--host", "192.0.2.1"], 2, "it needs TLS"),
        (["--keys", "/nowhere.yaml"], 1, "--keys /nowhere.yaml: No such file or directory"),
        (["--secret-file", "/nowhere"], 1, "no secret can be read from /nowhere: No such file"),
        (["--secret-file", "/bin/sh"], 1, "no secret can be read from /bin/sh: it is not ASCII"),
        (["--keys", __file__], 1, "test_up_refused.py: not YAML"),
        (["--engine", "model", "--device", "cuda"], 1, "device is cuda, and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_cannot_start_says_why(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    """Nothing is started, so that the command may run in this process."""
    done = CliRunner().invoke(up, [*FAKE, *arguments], obj=tmp_path)
    assert done.exit_code == code
    assert message in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_metrics_of_workers_beyond_the_loopback_are_at_their_own_host(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        where = ["--bind-host", "0.0.0.0", "--advertise-host", "127.0.0.1", "--insecure"]
        arguments = [*FAKE, *where, "--worker-metrics-port", str(port)]
        done = CliRunner().invoke(up, arguments, obj=tmp_path)
    assert f"cannot listen on 0.0.0.0:{port} (--worker-metrics-port): it is in use" in done.stderr


TLS = [f"--tls-{name}=/nowhere" for name in ("ca", "cert", "key")]


@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        ([], 2, "TLS is not used on the loopback, where every listener is (--host, --bind-host)"),
        (["--host", "192.0.2.1"], 1, "tls_ca: /nowhere cannot be read"),
        (["--bind-host", "192.0.2.1"], 1, "tls_ca: /nowhere cannot be read"),
    ],
)
def test_tls_files_are_used_or_refused(
    where: list[str], code: int, message: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(up, [*FAKE, *TLS, *where], obj=tmp_path)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("environment", "has_driver", "is_refused"),
    [({"CUDA_VISIBLE_DEVICES": ""}, True, True), ({}, False, True), ({}, True, False)],
)
def test_a_gpu_is_missed_before_anything_starts_and_a_driver_is_trusted(
    environment: dict[str, str], has_driver: bool, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("twolane.deploy.spec.devices._has_cuda", lambda: has_driver)
    cluster = cluster_with(model_with(device="cuda"), prefill=1, decode=1)
    with pytest.raises(StartError, match="cuda") if is_refused else nullcontext():
        check_gpus(cluster)
    check_gpus(cluster_with(model_with(device="cuda", engine="fake"), colocated=1))
    check_gpus(cluster_with(model_with(device="auto"), colocated=1))
    check_gpus(settled(cluster, ["0", "1"]))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "/nowhere"], 1, "no directory /nowhere; a model is"),
        (["--pages", "2"], 1, "a pool of 2 pages of 16 tokens is too small"),
        (["--colour", "red"], 2, "No such option"),
        (["--topology", "nowhere"], 2, "no file nowhere; a topology is"),
        (
            ["--port", "7300", "--metrics-port", "7302"],
            1,
            "--http-port and --metrics-port are both 7302",
        ),
        (
            ["--worker-port", "7300", "--metrics-port", "7300"],
            1,
            "--worker-port and --metrics-port are both 7300",
        ),
        (["--prefill", "10001"], 2, "10001 is not in the range"),
    ],
)
def test_a_terminal_shows_why_it_cannot_start(
    arguments: list[str], code: int, message: str
) -> None:
    done = subprocess.run(
        command(*FAKE, *arguments), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_model_fails_with_the_engines_own_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["T5Model"], "model_type": "t5"}')
    options = ["--launcher", "process", "--port", "0", "--colocated", "1"]
    done = subprocess.run(
        command(*options, "--model", str(tmp_path)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Error: colocated-0:" in done.stderr
    assert "T5Model" in done.stderr
    assert "LlamaForCausalLM" in done.stderr  # what would be accepted


def test_a_log_folder_that_cannot_be_made_is_named() -> None:
    done = subprocess.run(
        command(*ONE, "--log-dir", "/dev/null/logs"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "--log-dir /dev/null/logs cannot be made" in done.stderr
    assert "Traceback" not in done.stderr
