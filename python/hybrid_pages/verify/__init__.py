"""``hybrid-pages verify``: what is restored against what the engine computes itself."""
