"""The engine alone: steps, start-up, and how well it recalls."""
