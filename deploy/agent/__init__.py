"""The agent: a process on each host that starts, ends and proves dead the cluster's processes
there."""
