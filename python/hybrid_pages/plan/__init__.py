"""``hybrid-pages plan``: how much room a model's caches take, before an engine runs."""
