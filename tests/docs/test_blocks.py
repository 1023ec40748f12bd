"""Every command in the documents exists, with its options; what is not run by a test says why."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from pathlib import Path

import click
import pytest

from tests.docs.blocks import ROOT, SHELLS, Block, all_blocks, blocks_of
from twolane.cli.app import app
from twolane.cli.examples import leaves
from twolane.deploy.__main__ import main as deploy
from twolane.deploy.cli.plan_command import plan
from twolane.deploy.cli.up_command import up
from twolane.deploy.spec.topology_file import read_topology

COMMANDS = leaves(app) | {"up": up, "plan": plan}
COMMAND = re.compile(
    r"^(?:twolane|pip|make|sbatch|curl|ray|python -m|kubectl|helm) [\w-]", re.MULTILINE
)
# Programs of others.
OTHERS = {
    ".", "cat", "cd", "chown", "cp", "curl", "docker", "echo", "export", "helm", "kill", "kubectl",
    "mkdir", "ray", "systemctl", "useradd",
}  # fmt: skip
EXTRAS = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
BLOCKS = all_blocks(SHELLS)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_command_of_a_block_exists_with_its_options(block: Block) -> None:
    for words in block.commands():
        check(words)


def check(words: list[str]) -> None:
    """Raise if there is no such command, or it has no such option."""
    match [words[0].rpartition("/")[2], *words[1:]]:
        case ["twolane", *rest]:
            check_ours(rest)
        case ["python", "-m", "twolane.deploy", name, *rest]:
            command = deploy.get_command(click.Context(deploy), name)
            assert command is not None, name
            command.make_context(name, rest)
        case ["python", "-m", module, *rest]:
            check_module(module, rest)
        case ["make", *rest]:
            targets = {word for word in rest if "=" not in word}
            assert targets <= TARGETS, words
        case ["pip", _, *rest]:
            named = {extra for word in rest for extra in re.findall(r"\[([\w,]+)\]", word)}
            assert named <= {*EXTRAS}, words
        case ["sbatch", *rest]:
            assert any((ROOT / "deploy/slurm" / word).exists() for word in rest), words
        case ["python" | "python3", "-c" | "-m", *_]:
            pass
        case ["nsys", *rest]:
            check(rest[rest.index("twolane") :])
        case [program, *_]:
            assert program in OTHERS, words


def check_ours(words: list[str]) -> None:
    if words == ["--version"]:
        return
    name = max((name for name in COMMANDS if words[: len(name.split())] == name.split()), key=len)
    arguments = words[len(name.split()) :]
    with contextlib.suppress(click.exceptions.Exit):  # of --print-topology, which acts at once
        COMMANDS[name].make_context(name, [word for word in arguments if word != "…"])


def check_module(module: str, arguments: list[str]) -> None:
    """Its options are named in it, or in a module beside it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    text = "".join(
        path.read_text() for path in [*folder.glob("*.py"), *ROOT.glob("benchmarks/load/*.py")]
    )
    for option in (word for word in arguments if word.startswith("--")):
        assert f'"{option}"' in text, (module, option)


@pytest.mark.parametrize("block", all_blocks([""]), ids=str)
def test_a_block_without_a_language_has_no_commands(block: Block) -> None:
    is_drawing = re.search("[│└▶─═]", block.text)
    assert is_drawing or not COMMAND.search(block.text), "tag it sh or console"


def test_a_block_that_is_not_run_says_why() -> None:
    for block in BLOCKS:
        for path in re.findall(r"tests/[\w/.]+", block.why):
            assert (ROOT / path.rstrip(".")).exists(), (str(block), path)
    assert 0 < sum(bool(block.why) for block in BLOCKS) < len(BLOCKS)


# The chart's values have pools, too, and images.
@pytest.mark.parametrize(
    "block",
    [
        block
        for block in all_blocks(["yaml"])
        if "pools:" in block.text and not {"hostSets:", "image:"} & {*block.text.split()}
    ],
    ids=str,
)
def test_a_topology_of_a_document_is_one(block: Block, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(block.text)
    read_topology(tmp_path / "t.yaml", is_whole=False)


def test_an_option_that_does_not_exist_is_noticed() -> None:
    for line in ("twolane up --prefil 2", "twolane generat x", "make hay", "pip install '.[srve]'"):
        block = Block("x.md", 1, "sh", f"A=1 {line} | cat # really\n", "")
        (words, _) = block.commands()
        with pytest.raises((click.UsageError, AssertionError, ValueError)):
            check(words)


def test_blocks_are_read_with_their_reasons(tmp_path: Path) -> None:
    page = ROOT / "docs" / "slurm.md"
    found = [block for block in blocks_of(page) if block.tag == "sh"]
    assert all(block.why.startswith("it needs a Slurm") or "node17" in block.why for block in found)
    console = Block("x.md", 1, "console", "$ twolane certs \\\n    init\nmade\n$ twolane top\n", "")
    assert [*console.commands()] == [["twolane", "certs", "init"], ["twolane", "top"]]
