"""The model side of a worker: pool, pages, layers, runner, sampler. Knows no network and no Ray."""
