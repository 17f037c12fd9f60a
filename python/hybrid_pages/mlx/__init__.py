"""Prefix reuse for hybrid models that run with mlx-lm.

- :class:`PrefixCache` wraps a model, whose texts then resume from known prefixes;
- :class:`CacheStore` takes snapshots of live prompt caches and restores them into fresh ones;
- :func:`read_layout` describes the arrays of a prompt cache;
- ``hybrid-pages mlx-server MODEL`` is mlx-lm's server with such a cache.
"""

try:
    import mlx.core
    import mlx_lm
    import numpy  # noqa: F401
except ImportError as error:
    from hybrid_pages.adapter.errors import missing
    from hybrid_pages.mlx.versions import EXTRA

    raise missing("hybrid_pages.mlx", "mlx, mlx-lm and numpy", EXTRA, error) from error

from hybrid_pages.mlx.versions import UnsupportedError, require_names, require_versions

require_versions(mlx_lm.__version__, mlx.core.__version__)

with require_names():
    from hybrid_pages.mlx.layout import Layout, read_layout
    from hybrid_pages.mlx.prefix_cache import PrefixCache, Stats
    from hybrid_pages.mlx.store import CacheStore

__all__ = [
    "CacheStore",
    "Layout",
    "PrefixCache",
    "Stats",
    "UnsupportedError",
    "read_layout",
]
