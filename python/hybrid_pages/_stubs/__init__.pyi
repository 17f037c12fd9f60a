"""Stubs of `hybrid_pages._core` by topic: types only, there is no such module at run time."""
