"""Kernels alone, against the card's ceilings."""
