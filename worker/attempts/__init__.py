"""The attempts that routers command: ids, owners, labels, and what came of each."""
