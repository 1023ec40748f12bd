"""Attention over pages: decode and prefill."""
