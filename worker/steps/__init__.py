"""The loop that runs the engine's steps, and the watch over them."""
