"""The commands `up`, `down`, `agent`, `drain`, `controller` and `plan`, and their output."""
