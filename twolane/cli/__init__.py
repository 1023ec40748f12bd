"""The command `twolane`. It needs click and rich: the extra `[cli]`."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    try:
        from twolane.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"click", "rich"}:
            raise
        sys.exit(f"twolane: the command line needs {error.name}: pip install 'twolane[cli]'")
    except KeyboardInterrupt:  # nothing has been started yet
        sys.exit(130)
    run()
