"""The loop that runs the engine's steps, and the watchdog for late ones."""
