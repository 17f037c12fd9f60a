"""The identity of a model: its class, config, weights and libraries."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch

from hybrid_pages.transformers.structure import VOLATILE, describe
from hybrid_pages.transformers.tensor_parts import CODE, PLAIN, is_plain, parts, plain
from hybrid_pages.transformers.versions import UnsupportedError

WeightsDigest = Literal["sampled", "full"]

_SAMPLES, _THREADS = 64, 8


def model_identity(model: Any, weights: WeightsDigest) -> dict[str, str]:
    """The identity of a geometry: everything that a model's cached bytes depend on.

    weights: "sampled" digests 64 elements of every tensor, "full" every byte. If a tensor has
    parts, such as quantised weights and their scales, each part is digested so.
    """
    import transformers

    config = model.config.get_text_config(decoder=True)
    return {
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "config": _config_digest(config),
        "weights": _weights_digest(model, weights),
        "dtype": str(model.dtype),
        "attention": str(getattr(config, "_attn_implementation", None)),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def disk_facts(model: Any) -> dict[str, str]:
    """What the bytes of entries that outlive the process depend on, besides the geometry."""
    return {"format": "1", "device": f"{model.device.type} {platform.machine()}"}


def has_peft_adapters(model: Any) -> bool:
    """Whether PEFT adapters, such as LoRA, are on a model. They may be switched at any time."""
    return hasattr(model, "peft_config") or bool(getattr(model, "_hf_peft_config_loaded", False))


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a model computes with: parameters, buffers, and tensors in attributes."""
    listed = [*model.named_parameters(), *model.named_buffers()]
    yield from listed
    known = {id(part) for _, tensor in listed for part in (tensor, *plain(tensor))}
    for name, tensor in describe(model).tensors.items():
        if id(tensor) not in known:
            yield name, tensor


def _config_digest(config: Any) -> str:
    fields = {key: value for key, value in config.to_dict().items() if key not in VOLATILE}
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _weights_digest(model: Any, weights: WeightsDigest) -> str:
    if weights not in ("sampled", "full"):
        raise UnsupportedError(f"weights: expected 'sampled' or 'full', found {weights!r}")
    digest = hashlib.blake2b(digest_size=16)
    tensors = list(_tensors(model))
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        contents = threads.map(lambda each: _contents(each[1], weights), tensors)
        for (name, tensor), content in zip(tensors, contents, strict=True):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
            digest.update(content)
    return digest.hexdigest()


def _contents(tensor: torch.Tensor, weights: WeightsDigest) -> bytes:
    if is_plain(tensor):
        return _bytes(tensor, weights)
    found = parts(tensor)
    digest = hashlib.blake2b(digest_size=16)
    for path, part in found.tensors.items():
        digest.update(f"{path} {tuple(part.shape)} {part.dtype};".encode())
        digest.update(_bytes(part, weights))
    for path, value in found.values.items():
        digest.update(f"{path}={_word(value)};".encode())
    if found.unread:
        digest.update(os.urandom(16))  # equal to no other
    return digest.digest()


def _word(value: Any) -> str:
    """A text for a value. For other objects it is their class: model states compare them closer."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, CODE):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _bytes(tensor: torch.Tensor, weights: WeightsDigest) -> bytes:
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        flat = tensor.detach().reshape(-1)
        if weights == "sampled" and flat.numel() > _SAMPLES:
            places = torch.arange(_SAMPLES, device=flat.device) * (flat.numel() - 1)
            flat = flat[places // (_SAMPLES - 1)]
        if not flat.numel():
            return b""
        raw = flat.cpu().contiguous().view(torch.uint8).numpy()
        return hashlib.blake2b(memoryview(raw), digest_size=16).digest()
