"""Pools that size themselves, measured on a cluster that runs."""
