"""The identity of entries that outlive the engine, and configurations that have none.

The geometry, which workers read from their tensors, has layouts, formats and the chosen kernels.
The facts here are about the contents of the model and its weights. Paths are not among them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages import Geometry
from hybrid_pages.adapter.errors import UnsupportedError
from hybrid_pages.adapter.files import digest_of, model_files
from hybrid_pages.adapter.identity import about, short_lived, stable_identity
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.speculation import WITH_LAYERS
from hybrid_pages.vllm.config.support import reject
from hybrid_pages.vllm.versions import logger

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

_PLACES = ("model", "revision", "draft_layers")
"""The keys of a geometry's identity that are paths of weights."""
_VOLATILE = ("_name_or_path", "transformers_version")
_CHOSEN = ("backend", "backend_per_kind")
_PACKAGES = ("torch", "transformers")


class ModelFacts:
    """Everything that an engine's bytes depend on besides the geometry.

    config: the engine's configuration. A bounded part of the model's files is read. setting: the
    setting that needs the identity, for errors.

    Raises:
        UnsupportedError: something that another process cannot compare; says what to set.
    """

    def __init__(self, config: VllmConfig, setting: str = "disk_path") -> None:
        require_lasting(config, setting)
        self.facts = dict(_facts(config, setting))

    def identity(self, geometry: Geometry) -> bytes:
        """The identity of 32 bytes, for the geometry that all ranks have found."""
        return stable_identity(geometry, self.facts, places=_PLACES)

    def about(self, geometry: Geometry) -> str:
        """The parts of the identity, for people to read, as JSON."""
        return json.dumps(about(geometry, self.facts, places=_PLACES))

    def describe(self) -> str:
        """The digests of the weights, for the log."""
        found = (f"{key} {value[:12]}" for key, value in self.facts.items() if "weights" in key)
        return ", ".join(found)


def require_lasting(config: VllmConfig, setting: str = "disk_path") -> None:
    """Rejects configurations whose entries cannot outlive the engine.

    The files of a model on a hub are not checked: they may not be there yet.

    Raises:
        UnsupportedError: one line for each reason, with what to set.
    """
    without = f"or start without {setting}"
    reject([f"{setting}: {reason}, {without}" for reason in _reasons(config)])


def _reasons(config: VllmConfig) -> Iterator[str]:
    load, model, cache = config.load_config, config.model_config, config.cache_config
    if load.load_format not in versions.FILE_FORMATS:
        yield (
            f"load_format: expected weights in files ({', '.join(versions.FILE_FORMATS)}), found "
            f"{load.load_format!r}, whose weights nothing tells from others in a later process: "
            "load them from files"
        )
    elif model.model_weights:
        yield (
            f"model: expected a local folder, found {model.model_weights!r} in an object store: "
            "copy it to a disk of this machine"
        )
    if model.model_class_overrides:
        yield (
            "model_class_overrides: expected none, found some (their code has no version): "
            "drop them"
        )
    if versions.hash_seed(cache) is None:
        yield (
            "prefix_caching_hash_algo: expected hashes that are the same in every process, found "
            f"{cache.prefix_caching_hash_algo!r} with a random seed: set PYTHONHASHSEED, the same "
            "at each start, or pass --prefix-caching-hash-algo sha256"
        )


def _facts(config: VllmConfig, setting: str) -> Iterator[tuple[str, str]]:
    model, cache = config.model_config, config.cache_config
    yield "format", "1"
    yield "vllm", versions.installed()
    for package in _PACKAGES:
        yield package, version(package)
    yield "platform", f"{versions.platform()} {platform.machine()}"
    yield "load_format", str(config.load_config.load_format)
    yield from _of_model("", config, model, setting)
    yield "cache_dtype_skip_layers", _text(cache.kv_cache_dtype_skip_layers)
    yield "state_dtypes", f"{cache.mamba_cache_dtype} {cache.mamba_ssm_cache_dtype}"
    # The chosen backends are in the geometry.
    settings = versions.fields(config.attention_config)
    asked = {key: value for key, value in settings.items() if key not in _CHOSEN}
    yield "attention_config", _text(asked)
    yield "mamba_config", _text(versions.fields(config.mamba_config))
    more = config.additional_config
    yield "additional_config", _text(more) if isinstance(more, dict) else more.compute_hash()
    yield "expert_parallel", str(config.parallel_config.enable_expert_parallel)
    yield "hash_seed", str(versions.hash_seed(cache))
    if config.lora_config is not None:
        yield "lora_dtype", str(config.lora_config.lora_dtype)
    drafts = config.speculative_config
    if drafts is not None and drafts.method in WITH_LAYERS:
        yield "draft_method", str(drafts.method)
        if drafts.draft_model_config is None:
            yield "draft_model", f"{drafts.model} {drafts.revision}"
        else:
            yield from _of_model("draft_", config, drafts.draft_model_config, setting)
    if config.weight_transfer_config is not None:
        logger.warning(
            "hybrid-pages: weight_transfer_config lets weights change while the engine runs, so "
            f"nothing of what it writes to {setting} is found by others, or after its end"
        )
        yield "process", short_lived()


def _of_model(
    prefix: str, config: VllmConfig, model: ModelConfig, setting: str
) -> Iterator[tuple[str, str]]:
    yield f"{prefix}config", _text(_without_places(model.hf_config.to_dict()))
    yield f"{prefix}implementation", f"{model.model_impl} {model.code_revision}"
    # How images become tokens, which their hashes do not cover.
    media = model.multimodal_config
    yield f"{prefix}media", "" if media is None else _text(versions.fields(media))
    yield f"{prefix}dtype", str(model.dtype)
    yield f"{prefix}quantization", f"{model.quantization} {_text(model.quantization_config)}"
    # Some models scale positions by this length.
    yield f"{prefix}max_model_len", str(model.max_model_len)
    yield f"{prefix}weights", _weights(config, model, setting)


def _weights(config: VllmConfig, model: ModelConfig, setting: str) -> str:
    name = str(model.model)
    place: str | None = name
    if not Path(name).exists():
        place = versions.downloaded(name, model.revision, config.load_config.download_dir)
    if place is None:
        raise UnsupportedError(
            f"{setting}: model: expected files that can be read here, found none for {name!r}: "
            f"give its folder as the model, or start without {setting}"
        )
    path = Path(place)
    try:
        return digest_of({"weights": path} if path.is_file() else model_files(path))
    except UnsupportedError as error:
        raise UnsupportedError(f"{setting}: model {name!r}: {error}") from error


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in _VOLATILE}
        return {str(key): _without_places(item) for key, item in kept.items()}
    if isinstance(value, (list, tuple)):
        return [_without_places(item) for item in value]
    return value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_written)


def _written(value: Any) -> Any:
    """A text for a value that is not JSON, equal in all processes."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    text = str(value)
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" if " at 0x" in text else text
