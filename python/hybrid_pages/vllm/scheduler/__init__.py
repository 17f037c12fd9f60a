"""The scheduler half: finds prefixes in the cache, and plans stores and loads for the workers."""
