"""``hybrid-pages top``: a live view of an engine's metrics."""
