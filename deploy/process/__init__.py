"""Inside one process: build a router or a worker, serve, and report to the launcher."""
