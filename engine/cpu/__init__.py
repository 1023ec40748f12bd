"""The engine on a CPU, in torch: the reference for every other engine."""
