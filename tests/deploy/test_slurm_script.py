"""The batch script for Slurm, where there is no Slurm: tests/hosts/test_slurm.py submits it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from twolane.deploy.spec.parse_topology import parse_topology

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "twolane.sbatch"
TEXT = SCRIPT.read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")


def test_bash_accepts_the_script() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_running_answers_have_less_time_than_slurm_gives() -> None:
    (signalled_s,) = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", TEXT, re.MULTILINE)
    (drain_s,) = re.findall(r"TWOLANE_DRAIN_S:-(\d+)", TEXT)
    assert int(drain_s) + 30 <= int(signalled_s)  # then certificates, agents and the requeue


def test_the_page_explains_every_variable_with_its_default() -> None:
    used = dict(re.findall(r"\$\{(TWOLANE_\w+):-([^}]*)\}", TEXT))
    explained = dict(re.findall(r"^\| `(TWOLANE_\w+)` \|.*\| (.*) \|$", PAGE, re.MULTILINE))
    assert {*used} == {*explained}
    for name in ("TWOLANE_PYTHON", "TWOLANE_DRAIN_S", "TWOLANE_AGENT_PORT", "TWOLANE_POOLS"):
        assert explained[name].strip("`") == used[name]


def test_a_job_that_ends_too_early_is_told_what_it_lacks(tmp_path: Path) -> None:
    told = subprocess.run(
        ["bash", str(SCRIPT)], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "1"},
    )  # fmt: skip
    assert told.returncode != 0
    assert "name a topology: sbatch twolane.sbatch cluster.yaml" in told.stderr
    assert [*tmp_path.iterdir()] == []


# Instead of a Slurm's: `srun` runs its command here, others write down what they are told.
SRUN = """
case "$*" in
    *hostname*) [ "$WHEN" != nodes ] || kill "-$SIGNAL" $PPID; echo node1 10.0.0.1 ;;
    *) exec sleep 60 ;;
esac
"""
SCONTROL = """
case "$1" in hostnames) ;; show) echo node1 ;; requeue) echo requeued >> "$TOLD" ;; esac
"""
PYTHON = """
case "$*" in
    *"certs init"*) mkdir -p "${@: -1}" && touch "${@: -1}/ca.crt" "${@: -1}/ca.key" ;;
    *"certs issue"*) [ "$WHEN" != certs ] || kill "-$SIGNAL" $PPID ;;
    *secrets*) echo secret ;;
    *" up "*)
        [ "$WHEN" != up ] || kill "-$SIGNAL" $PPID
        if [ "$WHEN" != up ]; then
            trap 'echo drained >> "$TOLD"; exit 0' TERM
            echo serves >> "$TOLD"
            kill "-$SIGNAL" $PPID
        fi
        for _ in {1..600}; do sleep 0.05; done ;;
esac
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("when", "told"),
    [("nodes", []), ("certs", []), ("up", []), ("serves", ["serves", "drained"])],
)
@pytest.mark.parametrize(("signal", "requeued"), [("TERM", ["requeued"]), ("INT", [])])
def test_a_signal_ends_the_job_whenever_it_comes(
    tmp_path: Path, when: str, told: list[str], signal: str, requeued: list[str]
) -> None:
    ran, lines = _run(tmp_path, "pools: [{role: both}]\n", WHEN=when, SIGNAL=signal)
    assert ran.returncode == 0, ran.stderr
    assert lines == told + requeued


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_topology_is_read_whether_or_not_its_last_line_ends(tmp_path: Path, end: str) -> None:
    _run(tmp_path, "pools: [{role: both}]" + end, WHEN="serves", SIGNAL="INT")
    text = (tmp_path / "twolane-7" / "start-0" / "topology.yaml").read_text()
    topology = parse_topology(yaml.safe_load(text))
    assert [pool.role for pool in topology.pools] == ["both"]
    assert [host.agent for host in topology.hosts] == ["10.0.0.1:7210"]


def _run(
    folder: Path, topology: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The script's end, and what was told to whom."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", PYTHON)):
        (folder / name).write_text(f"#!/bin/bash{text}")
        (folder / name).chmod(0o755)
    (folder / "cluster.yaml").write_text(topology)
    told = folder / "told"
    told.touch()
    ran = subprocess.run(
        ["env", "--default-signal=INT", "bash", str(SCRIPT), "cluster.yaml"],
        capture_output=True, text=True, check=False,
        cwd=folder,
        env={
            "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "TOLD": str(told),
            "TWOLANE_PYTHON": str(folder / "python"), **environment,
        },
    )  # fmt: skip
    return ran, told.read_text().split()
