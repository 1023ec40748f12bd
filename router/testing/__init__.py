"""Doubles for tests of the router: scripted workers that need no engine and no network."""
