"""Kernels that read, write, convert and copy the pages of keys and values."""
