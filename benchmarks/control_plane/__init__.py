"""CPU costs of router and workers, without the engine."""
