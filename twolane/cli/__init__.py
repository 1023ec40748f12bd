"""The command `twolane`. It needs click and rich, which the extra `[cli]` installs."""

from __future__ import annotations

import io
import os
import sys

HELP = """\
Usage: twolane COMMAND [ARGUMENTS]

  up          Start a cluster on this machine and keep it up until Ctrl-C.
  plan        Say how many workers of each role a recorded load needs, and what they cost.
  generate    Generate the continuation of PROMPT.
  chat        Chat with the model.
  status      Show workers, pages by state and requests.
  top         Watch the workers, those under most pressure first, until Ctrl-C.
  console     Print the address of the cluster's page for browsers.
  requests    List requests, trace one through the cluster, or cancel them.
  events      Show what happened in the cluster, and who did what, oldest first.
  pages       Count the KV pages of each worker by state, and show the rows that hold most.
  doctor      Show what is wrong with the cluster, worst first, each with the command that fixes it.
  check       Compare answers of every prefill and decode pair with those of one worker alone.
  config      Show the cluster's settings, and change those that are live.
  flip        Have WORKER take the other role, prefill or decode, while it runs.
  scaler      What decides on the sizes of the pools: look at it, stop it, let it go on.
  logs        Show the last lines that a worker or router has logged.
  bundle      Write what routers know to FILE, a .tar.gz, for a support case.
  scale       Pin pools at N workers each: all of them, or none if they do not fit.
  rollout     Bring every worker to another revision of the model while the cluster serves.
  cordon      Start no new workers on HOST.
  uncordon    Allow new workers on HOST again.
  drain-node  Cordon HOST, drain its workers, and report when it is safe to switch it off.
  kill        Kill WORKER, prove that it has ended, and do not restart it.
  models      List the models that the cluster serves.
  drain       Let WORKER finish its requests, and give it no new ones.
  fence       Kill WORKER and prove that it has ended; it is then restarted.
  down        Stop a cluster: this machine's, the one of --topology, or one on Ray.
  auth        Create, list and revoke API keys.
  certs       Make certificates, for TLS between machines.
  context     List, choose and show named clusters.
  completion  Print the shell script that completes commands, options and workers at Tab.
"""


def main() -> None:
    """The entry point of the console script."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else its own lines stand before our errors
    try:
        from twolane.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"click", "rich"}:
            raise
        _explain(error.name)
        return
    except KeyboardInterrupt:  # nothing has been started yet
        sys.exit(130)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show becomes `?`.
            stream.reconfigure(errors="replace")
    run()


def _explain(missing: str) -> None:
    """Print the help, which needs no extra. Raises SystemExit if another command was given."""
    is_help = bool({"-h", "--help"} & {*sys.argv})
    extra = "serve" if sys.argv[1:2] == ["up"] and not is_help else "cli"
    need = f"the command line needs {missing}: pip install 'twolane[{extra}]'"
    if not is_help:
        sys.exit(f"Error: {need}")
    print(f"{HELP}\n{need}")
