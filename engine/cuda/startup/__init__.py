"""Loading a GPU engine, and building its kernels before the first request."""
