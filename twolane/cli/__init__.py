"""The command `twolane`. It needs click and rich: the extra `[cli]`."""

from __future__ import annotations

import io
import sys

HELP = """\
Usage: twolane COMMAND [ARGUMENTS]

  up          Start a cluster on this machine and keep it up until Ctrl-C.
  generate    Let the model go on from PROMPT.
  chat        Talk to the model.
  status      Show workers, pages by state and requests.
  models      List the models that the cluster serves.
  drain       Let WORKER finish what it runs, and give it nothing new.
  fence       Kill WORKER and prove that it has ended; it is started again.
  down        End a cluster: this machine's, that of --topology, or one on a Ray.
  auth        Make, list and revoke API keys.
  certs       Make certificates, for TLS between machines.
  context     List, choose and show named clusters.
  completion  Print what makes a shell complete commands, options and workers at Tab.
"""


def main() -> None:
    """The console script."""
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
            stream.reconfigure(errors="replace")  # a terminal that cannot show it gets a `?`
    run()


def _explain(missing: str) -> None:
    """Without the extra there is a help, too. Raises SystemExit if more was asked for."""
    is_help = bool({"-h", "--help"} & {*sys.argv})
    extra = "serve" if sys.argv[1:2] == ["up"] and not is_help else "cli"
    need = f"the command line needs {missing}: pip install 'twolane[{extra}]'"
    if not is_help:
        sys.exit(f"twolane: {need}")
    print(f"{HELP}\n{need}")
