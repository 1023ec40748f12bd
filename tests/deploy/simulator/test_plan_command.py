"""`twolane plan`, as a user types it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from twolane.deploy.cli.plan_command import plan


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "requests.csv"
    rows = "\n".join(f"{nth * 100},1000,{200 + nth % 7}" for nth in range(200))
    path.write_text(f"arrival_ms,prompt_tokens,output_tokens\n{rows}\n")
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(plan, [str(argument) for argument in arguments])


def test_it_says_what_is_needed_and_what_it_costs(trace: Path, tmp_path: Path) -> None:
    done = run("--trace", trace, "--slo", "300/15", "--plot", tmp_path / "plan.png")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("1 prefill + 1 decode: ")
    assert "colocated" in done.output.splitlines()[0]
    assert "GPU-hours" in done.output
    assert "200 requests in 0.0055 h, 10 a second" in done.output
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_it_says_so_to_programs(trace: Path) -> None:
    told = json.loads(run("--trace", trace, "--slo", "300/15", "--json").output)
    assert (told["split"]["prefill"], told["split"]["decode"]) == (1, 1)
    assert told["split"]["gpu_hours"] == pytest.approx(2 * 19.9 / 3600, abs=1e-3)
    assert told["split"]["held"] >= 0.9


def test_it_says_what_rate_some_gpus_hold(trace: Path) -> None:
    told = json.loads(run("--trace", trace, "--slo", "300/15", "--gpus", "2", "--json").output)
    assert [row["workers"] for row in told["held"]] == ["1 prefill + 1 decode", "2 colocated"]
    assert "requests/s held" in run("--trace", trace, "--slo", "300/15", "--gpus", "2").output


def test_it_plays_the_plan_on_the_real_router_and_workers(trace: Path) -> None:
    told = json.loads(run("--trace", trace, "--slo", "300/15", "--replay", "40", "--json").output)
    played = told["replayed"]
    assert (played["workers"], played["requests"]) == ("1 prefill + 1 decode", 40)
    assert played["held"] == pytest.approx(played["held_by_model"], abs=0.05)
    words = run("--trace", trace, "--slo", "300/15", "--replay", "20").output
    assert "1 prefill + 1 decode with the real router and workers: " in words
    assert "of the first 20 requests held the SLO, where the model says " in words


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--slo", "300"], "'300' is not TTFT/GAP in milliseconds"),
        (["--slo", "300/0"], "both times must be above 0"),
        (["--slo", "300/15", "--gpu", "abacus"], "'abacus' was not measured; there is h200"),
        (["--slo", "5/1"], "even alone on idle workers 0.0% hold it"),
        (["--slo", "300/15", "--plot", "/nowhere/x.png"], "/nowhere/x.png cannot be written"),
        (["--slo", "300/15", "--plot", "/proc/x.png"], "/proc/x.png cannot be written"),
        (["--slo", "300/15", "--plot", "x.docx"], "--plot draws a PNG: x.docx must end in .png"),
        (["--slo", "300/15", "--gpus", "2", "--plot", "x.png"], "leave out --gpus"),
        (["--slo", "300/15", "--gpus", "2", "--replay", "9"], "leave out --gpus"),
        ([], "Missing option '--slo'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    trace: Path, arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is simulated."""
    monkeypatch.setattr("twolane.deploy.simulator.planning.simulate", None)
    done = run("--trace", trace, *arguments)
    assert done.exit_code == 2
    assert complaint in done.output


def test_a_link_to_an_absent_folder_is_refused_before_anything_is_simulated(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.deploy.simulator.planning.simulate", None)
    link = tmp_path / "x.png"
    link.symlink_to(tmp_path / "absent/x.png")
    done = run("--trace", trace, "--slo", "300/15", "--plot", link)
    assert done.exit_code == 2, repr(done.exception)
    assert done.output.endswith(f"{link} cannot be written: No such file or directory\n")


def test_the_early_check_of_a_plot_changes_no_file(trace: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.png"
    old.write_bytes(b"before")
    for plot in (old, tmp_path / "new.png"):
        assert run("--trace", trace, "--slo", "5/1", "--plot", plot).exit_code == 2
    assert old.read_bytes() == b"before"
    assert {path.name for path in tmp_path.iterdir()} == {"old.png", "requests.csv"}


def test_a_plot_that_can_no_longer_be_written_costs_only_the_plot(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is removed while the plan is made."""
    from twolane.deploy.simulator import planning

    plot, make_plan = tmp_path / "gone/x.png", planning.make_plan
    plot.parent.mkdir()

    def removing(*arguments: Any, **more: Any) -> planning.Plan:
        plot.parent.rmdir()
        return make_plan(*arguments, **more)

    monkeypatch.setattr(planning, "make_plan", removing)
    done = run("--trace", trace, "--slo", "300/15", "--plot", plot)
    assert done.exit_code == 1, repr(done.exception)
    assert done.stdout.startswith("1 prefill + 1 decode: ")
    assert done.stderr == f"Error: cannot write {plot}: No such file or directory\n"


def test_a_load_that_is_too_much_for_so_many_is_told_so(trace: Path) -> None:
    done = run("--trace", trace, "--slo", "35/8.2", "--most-gpus", "2")
    assert done.exit_code == 2
    assert "no set of up to 2 workers" in done.output


def test_what_is_not_installed_is_missed_only_where_it_is_needed(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"numpy", "matplotlib"}
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else there(name)
    )
    assert "Missing option '--slo'" in run("--trace", trace).output
    held = ("--trace", trace, "--slo", "300/15")
    assert "planning needs numpy" in run(*held).output
    absent.remove("numpy")
    assert run(*held).exit_code == 0
    refused = run(*held, "--plot", trace.with_name("x.png"))
    assert refused.exit_code == 1
    assert "--plot needs matplotlib, which is not installed: pip install" in refused.output


def test_usage_errors_need_no_library() -> None:
    code = "import sys, twolane.deploy.cli.plan_command as it; print({'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_ms,prompt_tokens,output_tokens\n0,5,5\n1,0,5\n")
    done = run("--trace", bad, "--slo", "300/15")
    assert done.exit_code == 2
    assert done.output == "Error: bad.csv, line 3: a request has at least one token each way\n"


def test_the_command_of_the_cli_becomes_the_planner() -> None:
    command = [sys.executable, "-m", "twolane.cli", "plan", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: twolane plan [OPTIONS]")
    assert "twolane plan --trace requests.csv --slo 300/15" in done.stdout
