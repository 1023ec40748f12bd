"""Pages by NIXL."""
