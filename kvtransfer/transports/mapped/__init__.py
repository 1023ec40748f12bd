"""Pages in memory that both ends have mapped: shared memory, CUDA IPC."""
