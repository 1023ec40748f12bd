"""Tenants: what each may use, and how they share what there is."""
