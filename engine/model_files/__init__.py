"""Reads a model's files: configuration, tensors, quantisation, and a rank's part of them."""
