"""Tenants: requests with one ``cache_salt``. Those without a salt are a tenant, too."""

from hybrid_pages import Cache


def tenant_of(salt: str | None, share: float) -> bytes:
    """The name of the tenant with a salt; empty for all of them where nothing limits a tenant."""
    return b"" if share >= 1 or not salt else salt.encode("utf-8", "surrogatepass")


def namespace_of(cache: Cache, identity: bytes, salt: str | None, share: float) -> int:
    """The number of a request's namespace, held once; see :meth:`Cache.namespace`.

    vLLM's block hashes keep salts apart already. Where a tenant has a share of less than all, each
    has namespaces of its own, so that the cache knows whose an entry is.

    Args:
        cache: that gives the number.
        identity: everything that the request's bytes depend on beyond its block hashes.
        salt: of the request.
        share: that one tenant cannot exceed.
    """
    tenant = tenant_of(salt, share)
    if not tenant:
        return cache.namespace(identity)
    own = b"tenant" + len(tenant).to_bytes(8, "little") + tenant + identity
    return cache.namespace(own, tenant)
