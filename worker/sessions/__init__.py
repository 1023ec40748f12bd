"""Sessions with routers."""
