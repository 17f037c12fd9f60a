"""Tenants and namespaces of requests. The requests with one ``cache_salt`` are a tenant, and those
without a salt are one, too."""

from hybrid_pages import Cache


def tenant_of(salt: str | None, share: float) -> bytes:
    """The name of the tenant with a salt; empty for all of them where nothing limits a tenant."""
    return b"" if share >= 1 or not salt else salt.encode("utf-8", "surrogatepass")


class Namespaces:
    """Numbers of requests' namespaces; see :meth:`Cache.namespace`.

    vLLM's block hashes keep salts apart already. Where a tenant has a share of less than all, each
    has namespaces of its own, so that the cache knows whose an entry is.

    Args:
        cache: that gives the numbers.
        share: of the budget that one tenant cannot exceed.
    """

    def __init__(self, cache: Cache, share: float) -> None:
        self._cache, self._share = cache, share
        self._plain = cache.namespace(b"")
        """Of most requests; held all the time."""

    def hold(self, identity: bytes, salt: str | None) -> int:
        """The namespace of a request, until it is released.

        Args:
            identity: everything that the request's bytes depend on beyond its block hashes.
            salt: of the request.
        """
        tenant = tenant_of(salt, self._share)
        if tenant:
            own = b"tenant" + len(tenant).to_bytes(8, "little") + tenant + identity
            return self._cache.namespace(own, tenant)
        return self._cache.namespace(identity) if identity else self._plain

    def release(self, number: int) -> None:
        """A request needs its namespace no more."""
        # A cache that a panic has closed keeps all that it has.
        if number != self._plain and self._cache.failure() is None:
            self._cache.release_namespace(number)
