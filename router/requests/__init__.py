"""One request's life: attempts, answer, ledger."""
