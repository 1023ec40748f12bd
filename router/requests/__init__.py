"""The state of one request: attempts, answer, ledger."""
