"""What ranks share: the sum over all of them, and the file of their pages."""
