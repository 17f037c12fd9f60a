"""The worker half: one rank's caches, and the copies between them and the arena."""
