"""Kernels over rows of activations: norms, gates, embeddings, sampling, sums over ranks."""
