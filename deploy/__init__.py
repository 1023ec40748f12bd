import os

# gRPC's core writes a line past Python's logging for what any peer may send, as often as it does.
# It reads this when it is loaded, so it is set before anything else of a process that serves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
