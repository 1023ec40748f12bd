"""Kernels over rows of activations: norms, gates, embeddings, sampling, all-reduce."""
