"""Test doubles for the router: scripted workers that need no engine and no network."""
