"""Stands in for Mooncake's client where a test needs faults. `store.py` is all of it."""
