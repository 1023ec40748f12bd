"""The commands `up`, `down`, `agent` and `plan`, and their output."""
