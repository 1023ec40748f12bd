"""What a cluster is made of: topologies, the specs of its processes, and where they run."""
