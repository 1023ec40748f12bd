"""The model side of a worker: pool, pages, layers, sampler. Imports no network library and no
Ray."""
