"""Loads: from a lookup to restored blocks."""
