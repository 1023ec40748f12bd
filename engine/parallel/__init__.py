"""What ranks share: all-reduce, and the file of their pages."""
