"""A request in the scheduler half: its keys, its hints and its namespace."""
