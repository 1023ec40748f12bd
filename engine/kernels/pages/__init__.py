"""Kernels that read, write, convert and copy KV pages."""
