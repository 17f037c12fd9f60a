"""Facts that outlive the engine: weights in files, seeds of hashes."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import CacheConfig

FILE_FORMATS = (
    "auto",
    "fastsafetensors",
    "hf",
    "instanttensor",
    "mistral",
    "npcache",
    "pt",
    "runai_streamer",
    "runai_streamer_sharded",
    "safetensors",
    "sharded_state",
)
"""Values of ``load_format`` that read weights from files in the model's own folder."""

_HASH_SEED, _DEFAULT_SEED = "PYTHONHASHSEED", "vllm's own"


def hash_seed(cache: "CacheConfig") -> str | None:
    """The seed of prefix hashes; None if each process makes one of its own.

    Restates ``kv_cache_utils.resolve_none_hash_seed``: the environment's seed, or else a constant
    for SHA-256 and random bytes for xxHash.
    """
    given = os.environ.get(_HASH_SEED)
    if given is not None:
        return given
    return None if cache.prefix_caching_hash_algo.startswith("xxhash") else _DEFAULT_SEED


def downloaded(model: str, revision: str | None, download_dir: str | None) -> str | None:
    """The folder of a model of the Hugging Face hub in this machine's cache; None if it is not
    there. Uses no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return str(
            snapshot_download(
                model, revision=revision, cache_dir=download_dir, local_files_only=True
            )
        )
    except (HFValidationError, LocalEntryNotFoundError):
        return None
