"""A cluster on a Ray that runs already: nothing of Ray is started or stopped but our actors.

    twolane up ──▶ controller        one actor, detached: holds the supervisor, and watches nodes
                      │  gRPC
                      ▼
                   agent             one actor a node: starts, ends and proves dead its processes
                      │  fork
                      ▼
                   router, workers

Ray says where there are nodes and GPUs, and keeps agents and the controller alive. Its word that a
node or an actor is dead proves nothing: the agents' does. While its control store is away nothing
of ours notices.
"""
