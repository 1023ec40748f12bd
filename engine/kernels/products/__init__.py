"""Matrix products for few rows, and for many with a gate."""
