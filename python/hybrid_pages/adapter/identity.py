"""The identity of entries that outlive the process: a digest of everything their bytes depend on.

A geometry's identity names models by paths, which is enough inside one engine. On a disk that is
not enough: a path may hold other weights tomorrow, and another machine may use another path for the
same weights. So paths are left out there, and digests of contents are in their place.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping

from hybrid_pages._core import Geometry

BYTES = 32
_SECRET = ("hash_seed", "process")
_LONGEST = 16 << 10


def stable_identity(
    geometry: Geometry, facts: Mapping[str, str], *, places: Collection[str] = ()
) -> bytes:
    """The 32 bytes that name everything that the bytes of entries depend on.

    Args:
        geometry: of the entries, as found in the tensors.
        facts: what is not in the geometry: digests of contents, versions, settings.
        places: the keys of the geometry's identity that are paths.
    """
    found = json.loads(geometry.to_json())
    for place in places:
        found["identity"].pop(place, None)
    text = json.dumps([found, dict(facts)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=BYTES).digest()


def about(
    geometry: Geometry, facts: Mapping[str, str], *, places: Collection[str] = ()
) -> dict[str, object]:
    """The parts of :func:`stable_identity` by name, for people to read.

    The layout of the bytes is one digest, and each long fact is. Secrets are left out.
    """
    found = json.loads(geometry.to_json())
    identity = {key: value for key, value in found.pop("identity").items() if key not in places}
    layout = json.dumps(found, sort_keys=True)
    said: dict[str, object] = {"layout": _short(layout), "ranks": geometry.ranks}
    said |= {f"geometry_{key}": value for key, value in identity.items()}
    said |= {key: _told(key, value) for key, value in facts.items()}
    return said


def _told(key: str, value: str) -> str:
    if key in _SECRET:
        return "(not told)"
    return value if len(value) <= _LONGEST else f"digest {_short(value)}"


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def short_lived() -> str:
    """A random part of an identity: no other process finds anything stored under it."""
    return os.urandom(BYTES).hex()
