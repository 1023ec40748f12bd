"""The receiving half: one transfer's life, its grant, and the thread that drives them."""
