"""What importing a package must not drag in, seen by a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "cryptography",
    "torch",
    "ray",
    "transformers",
    "click",
    "rich",
    "numpy",
    "tokenizers",
    "triton",
}


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    return loaded | {name.partition(".")[0] for name in loaded}


@pytest.mark.parametrize(
    "statement",
    [
        "import twolane; [getattr(twolane, name) for name in twolane.__all__]",
        "import twolane.testing; [getattr(twolane.testing, n) for n in twolane.testing.__all__]",
    ],
)
def test_the_client_is_light(statement: str) -> None:
    assert loaded_by(statement) & HEAVY == set()


def test_import_twolane_alone_does_not_even_load_grpc() -> None:
    assert "grpc" not in loaded_by("import twolane")


def test_one_machine_needs_no_library_for_certificates() -> None:
    loaded = loaded_by(
        "import twolane.cli.app, twolane.deploy.cli.up_command, twolane.router.doors.server, "
        "twolane.worker.doors.server, twolane.deploy.process.serving"
    )
    assert "cryptography" not in loaded


def test_the_launcher_of_a_machine_loads_nothing_that_workers_are_made_of() -> None:
    """Else they start half a second later."""
    loaded = loaded_by("import twolane.deploy.cli.up_command, twolane.deploy.launch.supervisor")
    workers = {"twolane.worker.worker", "twolane.decode_worker", "twolane.prefill_worker"}
    assert loaded & {"numpy", "torch", "ray", *workers} == set()


def test_the_router_loads_no_model_library() -> None:
    loaded = loaded_by("import twolane.router.doors.server, twolane.router.text.codec")
    others = {"twolane.engine", "twolane.worker"}
    assert loaded & {"torch", "triton", "transformers", "ray", *others} == set()


@pytest.mark.parametrize(
    "package",
    [
        "twolane.engine.step",
        "twolane.worker.doors.server",
        "twolane.prefill_worker.role",
        "twolane.decode_worker.role",
        "twolane.kvtransfer.receive.receiver",
    ],
)
def test_only_deploy_knows_ray(package: str) -> None:
    assert "ray" not in loaded_by(f"import {package}")
