"""`make demo`: a cluster on this machine answers a few prompts and shows where the time went."""

from __future__ import annotations

import signal
import time

import click
from rich.console import Console

from twolane.client import Client
from twolane.deploy.cli.demo_prompts import DemoPrompt, demo_prompts
from twolane.deploy.cli.ledger_table import Measured, ledger_table
from twolane.errors import TwolaneError
from twolane.testing.local import start_local


@click.command()
@click.option("--launcher", type=click.Choice(["ray", "process"]), default="ray")
@click.option("--model", default="bundled", show_default=True)
def demo(launcher: str, model: str) -> None:
    """Start one router, one prefill and one decode worker; stream; account; stop."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster is stopped then, too
    console = Console(highlight=False)
    began_s = time.monotonic()
    where = "a local Ray" if launcher == "ray" else "three processes"
    console.print(f"starting {where}: a router, a prefill worker, a decode worker ...")
    try:
        with start_local(model, launcher=launcher, prefill=1, decode=1, device="cpu") as cluster:
            console.print(
                f"[green]ready[/] after {time.monotonic() - began_s:.1f} s: one worker reads the "
                "prompts, the other writes the answers\n"
            )
            with cluster.client() as client:
                measured = [_stream(client, prompt, console) for prompt in demo_prompts()]
            console.print(ledger_table(measured))
            stopping_s = time.monotonic()
    except TwolaneError as error:
        raise click.ClickException(error.message) from error
    console.print(
        f"\nstopped in {time.monotonic() - stopping_s:.1f} s; "
        f"{time.monotonic() - began_s:.1f} s in all. Your turn: [bold].venv/bin/twolane up[/]"
    )


def _stream(client: Client, prompt: DemoPrompt, console: Console) -> Measured:
    """Print the answer as it arrives, and record when each token arrived."""
    console.rule(prompt.title, align="left", style="dim")
    console.print(prompt.shown, style="dim", end="", markup=False, soft_wrap=True)
    arrivals_s: list[float] = []
    with client.stream(prompt.prompt, **prompt.options) as stream:
        for chunk in stream:
            arrivals_s += [time.monotonic()] * len(chunk.tokens)
            console.print(chunk.text, end="", style="bold", markup=False, soft_wrap=True)
        ledger = stream.completion().ledger
    console.print("\n")
    return Measured(prompt.title, ledger, arrivals_s)


if __name__ == "__main__":
    demo(prog_name="python -m twolane.deploy.demo")
