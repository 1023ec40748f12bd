"""The router's listeners for clients, workers and operators: gRPC and HTTP."""
