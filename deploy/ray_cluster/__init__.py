"""A cluster on an existing Ray: twolane starts and stops only its own actors there.

    twolane up ──▶ controller        one detached actor: runs the supervisor, and watches nodes
                      │  gRPC
                      ▼
                   agent             one actor per node: starts processes, ends and proves them dead
                      │  fork
                      ▼
                   router, workers

Ray tells us the nodes and their GPUs, and restarts agents and the controller. If Ray reports that a
node or an actor is dead, that proves nothing; only agents prove deaths. While Ray's control store
is down, our processes keep running.
"""
