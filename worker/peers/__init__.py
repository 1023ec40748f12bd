"""The workers that pages come from and go to."""
