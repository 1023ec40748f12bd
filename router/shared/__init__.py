"""The store that routers share in a Redis. No other code uses Redis."""
