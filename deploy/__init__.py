import os

# gRPC's core reads these when it is loaded, so they are set before anything else of a process that
# serves. It would write a line past Python's logging for what any peer may send, as often as it
# does; and it would start its threads again in each child that is forked with a `preexec_fn`, as
# Ray forks its daemons: about one in ten aborts before it becomes the raylet, and Ray waits for it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
