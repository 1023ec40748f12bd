"""Connections to the workers that pages come from and go to."""
