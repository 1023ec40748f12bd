"""`python -m twolane.cli` runs the command `twolane`."""

from twolane.cli import main

main()
