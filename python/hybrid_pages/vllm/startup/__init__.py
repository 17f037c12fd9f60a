"""The start of an engine: checks before the model loads, and descriptions for the log."""
