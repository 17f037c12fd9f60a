"""Shows prefixes restored on a real vLLM engine."""
