"""What the scheduler half knows of a request: its keys, its hints and its namespace."""
