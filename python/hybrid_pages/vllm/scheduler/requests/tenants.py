"""Tenants and namespaces of requests.

The requests with one ``cache_salt`` are a tenant, and those without a salt are one, too.
"""

from hybrid_pages import Cache


def tenant_of(salt: str | None, share: float) -> bytes:
    """The name of a salt's tenant; empty for all tenants if their share is not limited."""
    return b"" if share >= 1 or not salt else salt.encode("utf-8", "surrogatepass")


class TenantNamespaces:
    """The namespaces of requests; see :meth:`Cache.namespace`.

    vLLM's block hashes keep salts apart already. If a tenant's share is limited, each tenant has
    its own namespaces, so that the cache knows the tenant of an entry.

    Args:
        cache: has the namespaces.
        share: of the budget that one tenant cannot exceed.
    """

    def __init__(self, cache: Cache, share: float) -> None:
        self._cache, self._share = cache, share
        self._plain = cache.namespace(b"")
        """The namespace of most requests, which is always held."""

    def hold(self, identity: bytes, salt: str | None) -> int:
        """The namespace of a request, until it is released.

        Args:
            identity: everything that the request's bytes depend on besides its block hashes.
            salt: of the request.
        """
        tenant = tenant_of(salt, self._share)
        if tenant:
            own = b"tenant" + len(tenant).to_bytes(8, "little") + tenant + identity
            return self._cache.namespace(own, tenant)
        return self._cache.namespace(identity) if identity else self._plain

    def release(self, number: int) -> None:
        """Releases the namespace of a request."""
        # A cache that was closed by a panic keeps everything.
        if number != self._plain and self._cache.failure() is None:
            self._cache.release_namespace(number)
