"""Where routers and peers come in, and how routers learn that this worker is there."""
