"""``hybrid-pages verify``: compares what is restored with what the engine computes itself."""
