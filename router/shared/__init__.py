"""The store that routers share in a Redis, and all of us that knows Redis."""
