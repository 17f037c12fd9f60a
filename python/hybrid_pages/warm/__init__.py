"""``hybrid-pages warm``: sends known beginnings once, so that prompts can go on from their ends."""
