"""Sets the autoscaler up for a cluster as its topology says."""
