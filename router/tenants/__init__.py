"""Tenants: their quotas, and how they share a full cluster."""
