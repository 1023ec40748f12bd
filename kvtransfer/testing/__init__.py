"""Doubles that ship: a transport in memory, and a device with faults."""
