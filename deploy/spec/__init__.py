"""What a cluster shall be: topologies, the specs of its processes, and where they run."""
