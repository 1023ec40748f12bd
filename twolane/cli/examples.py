"""What `--help` shows as examples, by command. Each is run as a test."""

from __future__ import annotations

from collections.abc import Mapping

import click

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "up": (
        "twolane up",
        "twolane up --prefill 2 --decode 2 --model meta-llama/Llama-3.1-8B-Instruct",
        "twolane up --topology cluster.yaml",
    ),
    "generate": (
        'twolane generate "Once upon a time, a fox" --max-tokens 40',
        "echo Once upon a time | twolane generate - --temperature 0 --json",
    ),
    "chat": ('twolane chat --system "You are brief." --temperature 0',),
    "status": ("twolane status --watch", "twolane status --json"),
    "models": ("twolane models",),
    "drain": (
        "twolane drain decode-0 --wait --hand-over",
        "twolane drain decode-0 --wait --take && kill -9 $PID",
        "twolane drain decode-0 --undo",
    ),
    "fence": ("twolane fence decode-0", "twolane fence --host node-b --i-saw-it-off"),
    "down": (
        "twolane down",
        "twolane down --topology cluster.yaml --secret-file secret",
        "twolane down --ray-address auto --cluster default",
    ),
    "auth create-key": (
        "twolane auth create-key --tenant acme --tokens-per-min 100000 --expires-in 30d",
    ),
    "auth list": ("twolane auth list",),
    "auth revoke": ("twolane auth revoke KEY_ID",),
    "auth whoami": ("twolane auth whoami",),
    "certs init": ("twolane certs init",),
    "certs issue": (
        "twolane certs issue router/router-0 --host 10.0.0.5 --host llm.example.com",
        "twolane certs issue client/acme/web operator/anna",
    ),
    "certs request": ("twolane certs request worker/decode-0 --host 10.0.0.6",),
    "certs sign": ("twolane certs sign decode-0.csr",),
    "certs renew": ("twolane certs renew",),
    "certs nobody": ("twolane certs nobody --dir .",),
    "context list": ("twolane context list",),
    "context use": ("twolane context use staging",),
    "context show": ("twolane context show staging",),
    "completion": (
        'eval "$(twolane completion)"',
        "twolane completion fish > ~/.config/fish/completions/twolane.fish",
    ),
}


def leaves(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """Every command that does something, by its words."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            found |= leaves(command, words)
        else:
            found[words] = command
    return found


def epilog(words: str) -> str:
    """The end of that command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[words])


def show_examples(group: click.Group) -> None:
    """Put them at the end of each command's help."""
    for words, command in leaves(group).items():
        command.epilog = epilog(words)
