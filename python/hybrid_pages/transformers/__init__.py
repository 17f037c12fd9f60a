"""Prefix reuse for hybrid models that run with Hugging Face transformers, on a CPU or a GPU.

- :class:`PrefixCache` wraps a model, whose ``generate`` then resumes from known prefixes;
- :class:`CacheStore` takes snapshots of live caches and restores them into fresh ones;
- :func:`cache_bytes` measures a live cache, :func:`geometry_of` predicts it from a config.
"""

try:
    import torch  # noqa: F401
    import transformers
except ImportError as error:
    from hybrid_pages.adapter.errors import missing
    from hybrid_pages.transformers.versions import EXTRA

    needed = "transformers and torch"
    raise missing("hybrid_pages.transformers", needed, EXTRA, error) from error

from hybrid_pages.transformers.versions import (
    UnsupportedError,
    require_version,
    warn_if_untested,
)

require_version(transformers.__version__)
warn_if_untested()

from hybrid_pages.transformers.prefix_cache import PrefixCache, Stats  # noqa: E402
from hybrid_pages.transformers.sizes import cache_bytes, geometry_of  # noqa: E402
from hybrid_pages.transformers.store import CacheStore  # noqa: E402

__all__ = [
    "CacheStore",
    "PrefixCache",
    "Stats",
    "UnsupportedError",
    "cache_bytes",
    "geometry_of",
]
