"""Calls of the clients' door, as streams of messages."""
