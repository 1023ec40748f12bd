"""What a process tells of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import twolane
from twolane.security.process_facts import process_facts


def test_a_process_is_of_the_version_that_it_has_loaded_not_of_the_one_on_disk_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = process_facts(None).version
    on_disk = SimpleNamespace(version="99.0.0")
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: on_disk)
    assert process_facts(None).version == loaded


@pytest.mark.parametrize("is_file", [True, False])
def test_a_process_knows_the_disk_of_the_file_that_its_output_goes_to(
    is_file: bool, tmp_path: Path
) -> None:
    code = (
        "from twolane.security.process_facts import process_facts\n"
        "its = process_facts(None)\n"
        "print(its.log_file, its.log_free_bytes)\n"
    )
    log = tmp_path / "decode-0.log"
    with log.open("ab") as file:
        err = file if is_file else subprocess.PIPE
        run = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=err, text=True, check=True
        )
    *path, free = run.stdout.split()
    assert path == [str(log)] * is_file
    assert (int(free) > 0) is is_file


def test_a_process_of_a_checkout_that_is_not_installed_has_a_version_too() -> None:
    """As on machines that get the code as an archive, with packages of their own."""
    code = (
        "import importlib.metadata as installed\n"
        "def version(name):\n"
        "    raise installed.PackageNotFoundError(name)\n"
        "installed.version = version\n"
        "from twolane.security.process_facts import process_facts\n"
        "print(process_facts(None).version)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == twolane.__version__
