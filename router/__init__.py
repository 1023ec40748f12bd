"""The router of a cluster: doors, text, admission, policy, membership, dispatch."""
