"""The identity of a model: its class, config, weights and libraries."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import mlx_lm

from hybrid_pages.mlx.numpy_views import views

_THREADS = 8


def model_identity(model: Any, arrays: Mapping[str, mx.array] | None) -> dict[str, str]:
    """The identity of a geometry: everything that a model's cached bytes depend on.

    arrays: the weights by path, of which every byte is read. None: a random text is used instead,
    so that no other process has the same identity.
    """
    weights = f"process {os.urandom(16).hex()}" if arrays is None else weights_digest(arrays)
    return {
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "config": _digest(repr(getattr(model, "args", None))),
        "weights": weights,
        "mlx_lm": mlx_lm.__version__,
        "mlx": mx.__version__,
    }


def disk_facts(conditions: str) -> dict[str, str]:
    """What entries that outlive the process depend on, besides the geometry.

    conditions: everything in the model but its arrays, as text.
    """
    device = f"{mx.default_device()} {platform.machine()}"
    return {"format": "mlx 1", "device": device, "parts": _digest(conditions)}


def weights_digest(arrays: Mapping[str, mx.array]) -> str:
    """A digest of the names, shapes, dtypes and all bytes of some arrays."""
    digest = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        found = zip(
            arrays.items(), threads.map(_contents, views(list(arrays.values()))), strict=True
        )
        for (name, array), content in found:
            digest.update(f"{name} {tuple(array.shape)} {array.dtype};".encode())
            digest.update(content)
    return digest.hexdigest()


def _contents(array: Any) -> bytes:
    raw = array if array.flags.c_contiguous else array.copy()
    if not raw.size:
        return b""
    return hashlib.blake2b(memoryview(raw).cast("B"), digest_size=16).digest()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
