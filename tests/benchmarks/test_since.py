import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import REPOSITORY
from benchmarks.results import RESULTS, depends_on
from benchmarks.since import since

UNKNOWN = "0" * 40


def git(repository: Path, *command: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *names, *command], cwd=repository, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    commit(tmp_path, "engine/step.py", "router/door.py")
    return tmp_path


def commit(repository: Path, *files: str, text: str = "") -> str:
    for name in files:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "a change")
    return git(repository, "rev-parse", "HEAD")


def measured(repository: Path, at: str, **more: Any) -> Path:
    path = repository / "speed.json"
    document = {"date": "2026-01-01T00:00:00", "commit": at, "depends_on": ["engine"]}
    path.write_text(json.dumps({**document, **more}))
    return path


def test_a_result_is_current_until_something_that_it_depends_on_differs(repository: Path) -> None:
    at = git(repository, "rev-parse", "HEAD")
    path = measured(repository, at)
    commit(repository, "router/door.py", text="other")
    assert since(path, repository).is_current
    commit(repository, "engine/step.py", "engine/load.py", text="other")
    its = since(path, repository)
    assert (its.n_changed, its.in_words(), its.is_current) == (2, "2 files changed", False)
    git(repository, "checkout", at, "--", "engine")
    (repository / "engine/load.py").unlink()
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "back")
    assert since(path, repository).is_current


def test_a_path_behind_a_mark_changes_no_figure(repository: Path) -> None:
    at = git(repository, "rev-parse", "HEAD")
    path = measured(repository, at, depends_on=["engine", "!engine/ranks"])
    commit(repository, "engine/ranks/group.py", text="other")
    assert since(path, repository).is_current
    commit(repository, "engine/ranks.py", text="other")
    assert not since(path, repository).is_current


def test_a_comment_or_a_docstring_changes_no_figure(repository: Path) -> None:
    step = 'def step():\n    """{}"""\n    return {}  # {}\n'
    at = commit(repository, "engine/step.py", text=step.format("A step.", 1, "one"))
    path = measured(repository, at)
    commit(repository, "engine/step.py", text=step.format("Steps.", 1, "it"))
    assert since(path, repository).is_current
    commit(repository, "engine/step.py", text=step.format("Steps.", 2, "it"))
    assert not since(path, repository).is_current


def test_where_one_file_has_changed_those_with_other_comments_count_too(
    repository: Path,
) -> None:
    at = git(repository, "rev-parse", "HEAD")
    path = measured(repository, at)
    commit(repository, "engine/step.py", text="# other\n")
    commit(repository, "engine/load.py", text="other = 1\n")
    assert since(path, repository).in_words() == "2 files changed"


def test_a_file_that_is_no_text_has_changed(repository: Path) -> None:
    (repository / "engine/table.gz").write_bytes(b"\x1f\x8b\x00")
    at = commit(repository, "engine/step.py", text="step = 1\n")
    path = measured(repository, at)
    (repository / "engine/table.gz").write_bytes(b"\x1f\x8b\x01")
    commit(repository, "engine/step.py", text="step = 1  # one\n")
    assert since(path, repository).in_words() == "2 files changed"


def test_what_was_measured_of_no_known_commit_is_never_current(repository: Path) -> None:
    its = since(measured(repository, UNKNOWN), repository)
    assert (its.in_words(), its.is_current) == ("commit unknown", False)
    at = git(repository, "rev-parse", "HEAD")
    its = since(measured(repository, at, dirty=True), repository)
    assert (its.in_words(), its.is_current) == ("of uncommitted code", False)


def test_the_longest_name_counts_and_what_is_unknown_depends_on_the_product() -> None:
    assert "engine" in depends_on("engine_exact")
    assert "benchmarks/tracing" in depends_on("tracing_cost")
    assert {"router", "engine", "deploy"} <= {*depends_on("of nobody")}


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("goodput_h200", "goodput.measure"),
        ("starts_one_h200", "cluster.starts"),
        ("kills_8b", "cluster.kills"),
        ("first_gap_h200", "gaps.first_gap"),
        ("gap_trace_h200", "gaps.trace"),
        ("idle_h200", "cluster.idle"),
    ],
)
def test_a_result_depends_on_the_benchmarks_modules_that_are_imported(
    name: str, module: str
) -> None:
    code = f"import sys, benchmarks.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {its.replace(".", "/") for its in done.stdout.split() if its.count(".") > 1}
    listed = [its.removeprefix("!").removesuffix(".py") for its in depends_on(name)]
    missing = [
        its
        for its in imported
        if its.startswith("benchmarks/") and not any(f"{its}/".startswith(f"{p}/") for p in listed)
    ]
    assert missing == []


def test_every_saved_result_lists_paths_that_are_there() -> None:
    for path in RESULTS.glob("*.json"):
        paths = json.loads(path.read_text())["depends_on"]
        assert paths, path.name
        absent = [its for its in paths if not (REPOSITORY / its.removeprefix("!")).exists()]
        assert absent == [], path.name
