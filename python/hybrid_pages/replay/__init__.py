"""``hybrid-pages replay``: compares policies and budgets on a trace of requests."""
