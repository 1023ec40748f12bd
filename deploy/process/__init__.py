"""Inside one process: composing a router or a worker, serving, and telling the launcher."""
