"""Which process delayed a token."""
