"""The sending half: one transfer's life, its grant, its posts, and the thread that drives them."""
