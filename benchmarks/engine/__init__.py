"""The engine alone: steps, start-up, and recall accuracy."""
