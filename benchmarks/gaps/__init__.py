"""Which process held a token up on its way."""
