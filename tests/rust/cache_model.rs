//! Rules of the cache, one a test.
