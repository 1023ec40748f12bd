"""Requests and events as operators see them, and acts that wait for a controller."""
