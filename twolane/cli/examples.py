"""The examples in `--help`, by command. A test runs each of them."""

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
    "top": ("twolane top --once",),
    "console": ("twolane console",),
    "bundle": ("twolane bundle incident.tar.gz",),
    "requests list": (
        "twolane requests list",
        "twolane requests list --worker decode-0 --older-than 30 -q",
    ),
    "requests show": ("twolane requests show r1",),
    "requests trace": ("twolane requests trace r1 --perfetto r1.json",),
    "requests cancel": ("twolane requests cancel r1 --yes --reason 'a client that hangs'",),
    "events": ("twolane events --since 10m", "twolane events --audit --json"),
    "logs": (
        "twolane logs decode-0 -n 20",
        "twolane logs router-0 --follow",
        "twolane logs decode-1 --file",
    ),
    "pages": ("twolane pages", "twolane pages --check"),
    "models": ("twolane models",),
    "drain": (
        "twolane drain decode-0 --dry-run",
        "twolane drain decode-0 --wait --hand-over --reason 'a new driver'",
        "twolane drain decode-0 --wait --take && kill -9 $PID",
        "twolane drain decode-0 --undo",
    ),
    "fence": (
        "twolane fence decode-0 --yes --reason 'its step does not end'",
        "twolane fence --host node-b --i-saw-it-off --yes",
    ),
    "doctor": ("twolane doctor", "twolane doctor --check certificates --check versions"),
    "check": ("twolane check", "twolane check --worker decode-0 --prompts 2 --json"),
    "config get": ("twolane config get", "twolane config get scaler --live"),
    "config diff": ("twolane config diff",),
    "config set": (
        "twolane config set router.max_queued=2000 --yes --reason 'a burst'",
        "twolane config set log_level=debug --dry-run",
        "twolane config set scaler.slo_ttft_s=0.3 scaler.budget=12 --yes",
    ),
    "config reload": ("twolane config reload --yes",),
    "kill": ("twolane kill decode-1 --yes --reason 'its card is slow'",),
    "flip": ("twolane flip decode-1 --dry-run", "twolane flip decode-1 --yes"),
    "scaler status": ("twolane scaler status", "twolane scaler status --json"),
    "scaler explain": ("twolane scaler explain",),
    "scaler pause": ("twolane scaler pause --yes --reason 'a measurement runs'",),
    "scaler resume": ("twolane scaler resume --yes",),
    "scaler dry-run": ("twolane scaler dry-run --yes",),
    "scale": (
        "twolane scale prefill=2 decode=3 --dry-run",
        "twolane scale decode=2 --for 1h --yes --wait",
        "twolane scale decode auto --yes",
    ),
    "rollout start": (
        "twolane rollout start /models/llama-v2 --dry-run",
        "twolane rollout start /models/llama-v2 --canary 5% --yes --wait",
    ),
    "rollout status": ("twolane rollout status",),
    "rollout pause": ("twolane rollout pause --yes",),
    "rollout resume": ("twolane rollout resume --yes --wait",),
    "rollout undo": ("twolane rollout undo --yes --wait --reason 'worse answers'",),
    "cordon": ("twolane cordon node-b --yes",),
    "uncordon": ("twolane uncordon node-b --yes",),
    "drain-node": ("twolane drain-node node-b --hand-over --yes",),
    "down": (
        "twolane down --yes",
        "twolane down --topology cluster.yaml --secret-file secret --yes",
        "twolane down --ray-address auto --cluster default --yes",
    ),
    "plan": (
        "twolane plan --trace requests.csv --slo 300/15",
        "twolane plan --trace requests.csv --slo 500/30 --share 0.99 --plot plan.png",
        "twolane plan --trace requests.csv --slo 300/15 --gpus 2",
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
    """Every command that is not a group, by its words."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            found |= leaves(command, words)
        else:
            found[words] = command
    return found


def epilog(words: str) -> str:
    """The examples at the end of that command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[words])


def show_examples(group: click.Group) -> None:
    """Add the examples to the help of each command."""
    for words, command in leaves(group).items():
        command.epilog = epilog(words)
