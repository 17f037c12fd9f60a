"""The scheduler half: what is where, what is stored, and what is loaded."""
