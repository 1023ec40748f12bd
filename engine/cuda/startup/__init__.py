"""Loads a GPU engine, and builds its kernels before the first request."""
