"""The front of a cluster: doors, text, admission, policy, membership, dispatch."""
