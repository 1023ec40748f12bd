"""Matrix products of few rows, and gated products of many."""
