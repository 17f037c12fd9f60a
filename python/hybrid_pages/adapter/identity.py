"""The identity of what outlives its process: one digest of everything that the bytes depend on.

A geometry's identity names models by where they lie, which is enough inside one engine. On a disk
the same path may have other weights tomorrow, and another machine mounts them elsewhere: there the
names of places are left out, and digests of contents take their part.
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
    """The 32 bytes that name a geometry, its weights and all else that its bytes depend on.

    Args:
        geometry: found in the tensors.
        facts: what is not in it: digests of contents, versions, settings.
        places: the keys of the geometry's own identity that say where something lies.
    """
    found = json.loads(geometry.to_json())
    for place in places:
        found["identity"].pop(place, None)
    text = json.dumps([found, dict(facts)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=BYTES).digest()


def about(
    geometry: Geometry, facts: Mapping[str, str], *, places: Collection[str] = ()
) -> dict[str, object]:
    """What :func:`stable_identity` makes its digest from, for people: facts by name.

    How bytes lie is one digest, and so is each long fact. Secrets are not told.
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
    """A part of an identity that no other process has: nothing under it is ever found again."""
    return os.urandom(BYTES).hex()
