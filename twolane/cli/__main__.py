"""`python -m twolane.cli` is `twolane`."""

from twolane.cli import main

main()
