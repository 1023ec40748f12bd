"""The workers that a router knows, and what they serve."""
