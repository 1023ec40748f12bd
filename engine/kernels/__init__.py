"""Triton kernels for Hopper, each beside the slow torch reference that it is tested against.

Only this folder imports triton; the rest of the engine imports it where a GPU is used, so that a
machine without triton runs the CPU engine.
"""
