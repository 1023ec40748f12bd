"""Where clients, workers and operators come in: gRPC and HTTP."""
