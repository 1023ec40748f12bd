"""Starts processes, watches them, and restarts them."""
