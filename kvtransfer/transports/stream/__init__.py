"""Pages over TCP or Unix sockets."""
