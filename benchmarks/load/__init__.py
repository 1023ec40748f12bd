"""Sends a plan to running servers, and measures the latencies that users would see."""
