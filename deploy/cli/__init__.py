"""The command lines, and what they print."""
