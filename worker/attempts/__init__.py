"""The attempts that routers assign: ids, owners, labels, and the log of each."""
