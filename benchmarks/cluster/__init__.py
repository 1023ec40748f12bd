"""A whole cluster: starting it, idle, killed in part, overloaded."""
