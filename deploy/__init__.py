import os

# gRPC's core reads these when it is loaded, so they are set before a serving process does anything
# else. Without the first, any peer can make it write to stderr, past Python's logging, as often as
# the peer likes. Without the second, it restarts its threads in each child that is forked with a
# `preexec_fn`, as Ray's are: about one such child in ten aborts before it becomes the raylet, and
# Ray waits for it without end.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
