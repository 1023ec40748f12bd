"""Triton kernels for Hopper, each with the slow torch reference that it is tested against.

Only this folder imports triton; the rest of the engine imports it only if a GPU is used, so that a
machine without triton can run the CPU engine.
"""
