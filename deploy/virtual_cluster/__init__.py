"""A whole cluster in one process under virtual time: the real router, workers, roles, transfers.

    cluster.py   the cluster, with faults: kills, reset streams, cut hosts, steps that hang
    timed.py     an engine whose steps take what was measured of a GPU, and requests played on it

It is here for tests, for benchmarks, and to check what the fluid model of
`twolane.deploy.simulator` says.
"""
