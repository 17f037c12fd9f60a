"""``hybrid-pages replay``: what a policy keeps, and what a budget is worth, on a trace."""
