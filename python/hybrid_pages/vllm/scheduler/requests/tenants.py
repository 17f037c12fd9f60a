"""Tenants and namespaces of requests.

The requests with one ``cache_salt`` are a tenant, and those without a salt are one, too.
"""

from hybrid_pages import Cache
from hybrid_pages.adapter.keys import of_tenant


def tenant_of(salt: str | None, apart: bool) -> bytes:
    """The name of a salt's tenant; empty for all tenants if they are not told apart."""
    return salt.encode("utf-8", "surrogatepass") if apart and salt else b""


class TenantNamespaces:
    """The namespaces of requests; see :meth:`Cache.namespace`.

    vLLM's block hashes keep salts apart already. If a tenant's share is limited, or its entries
    are encrypted, each tenant has its own namespaces, so that the cache and the tiers know the
    tenant of an entry.

    Args:
        cache: has the namespaces.
        apart: whether tenants have their own namespaces.
    """

    def __init__(self, cache: Cache, *, apart: bool) -> None:
        self._cache, self._apart = cache, apart
        self._plain = cache.namespace(b"")
        """The namespace of most requests, which is always held."""

    def hold(self, identity: bytes, salt: str | None) -> int:
        """The namespace of a request, until it is released.

        Args:
            identity: everything that the request's bytes depend on besides its block hashes.
            salt: of the request.
        """
        tenant = tenant_of(salt, self._apart)
        if tenant:
            return self._cache.namespace(of_tenant(tenant, identity), tenant)
        return self._cache.namespace(identity) if identity else self._plain

    def release(self, number: int) -> None:
        """Releases the namespace of a request."""
        # A cache that was closed by a panic keeps everything.
        if number != self._plain and self._cache.failure() is None:
            self._cache.release_namespace(number)
