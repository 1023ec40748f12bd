"""What router and workers cost beside the engine."""
