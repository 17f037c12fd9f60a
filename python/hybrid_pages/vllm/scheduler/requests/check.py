"""Requests of ``hybrid-pages verify --url``: each names the one source that its prompt may have.

An example: ``kv_transfer_params={"hybrid_pages": {"verify": {"source": "disk"}}}``. It counts only
beside a ``cache_salt`` that begins with :data:`SALT`. vLLM's hashes cover the salt, so such a
request finds and moves nothing but what requests with the same salt have stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.request import Request

KEY, NAME = "hybrid_pages", "verify"
SALT = "hybrid-pages-verify-"
"""The salts of these requests begin with this."""
OWN = "own"
"""vLLM's own prefix cache."""
SOURCES = (OWN, "host", "disk", "remote")


@dataclass(slots=True)
class CheckRequest:
    """What such a request asks for, and what became of it."""

    source: str
    """One of :data:`SOURCES`."""
    drop: bool = False
    """Whether what the cache has of the prompt is dropped when the request ends."""
    hits: dict[str, int] = field(default_factory=dict)
    """The tokens that were not computed, by source."""
    loaded_bytes: int = 0
    """The bytes that were loaded, on each rank."""
    failed: str = ""
    """Why a load failed; empty if none did."""

    @property
    def leaves_own(self) -> bool:
        """Whether the request takes nothing from vLLM's own prefix cache."""
        return self.source != OWN


def check_of(request: "Request") -> CheckRequest | None:
    """What a request asks for, if it is one of these and makes sense."""
    params = request.kv_transfer_params
    if not params or not (request.cache_salt or "").startswith(SALT):
        return None
    hints = params.get(KEY)
    given: Any = hints.get(NAME) if isinstance(hints, Mapping) else None
    return None if wrong(given) else CheckRequest(given["source"], given.get("drop", False))


def wrong(given: Any) -> str:
    """What is wrong with the value of the hint; empty if nothing is."""
    if not isinstance(given, Mapping) or not {"source"} <= set(given) <= {"source", "drop"}:
        return "expected a mapping with source, and drop if wanted"
    if given["source"] not in SOURCES:
        return f"source: expected one of {', '.join(SOURCES)}"
    if not isinstance(given.get("drop", False), bool):
        return "drop: expected true or false"
    return ""
