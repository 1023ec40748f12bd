"""Answers that a worker gives alone, for checks of the cluster."""
