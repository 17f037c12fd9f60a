"""When an engine starts: checks before the model loads, and what the log says."""
