"""Benchmarks of page transfers: their rates, and what they cost."""
