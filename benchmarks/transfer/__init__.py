"""How fast pages move, and what it costs."""
