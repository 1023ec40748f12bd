"""Sending a plan to running servers, and what their users would have felt."""
