"""How vLLM lays out its caches: blocks, pages and states, as the cache's geometry."""
