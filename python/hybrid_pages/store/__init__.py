"""``hybrid-pages store``: looks at a disk path, verifies it, and removes what nobody needs."""
