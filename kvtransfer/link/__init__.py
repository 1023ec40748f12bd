"""What the two ends agree on before pages move, and how they find each other."""
