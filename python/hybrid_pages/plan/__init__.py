"""``hybrid-pages plan``: what a model's caches take, before an engine runs."""
