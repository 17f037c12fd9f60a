"""Finds a model's configuration and reads its values, checking each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_pages import HybridPagesError

TYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""The size of an element, by the dtypes that models are computed in."""

_INNER = ("text_config", "llm_config")
_MISSING = object()


class ModelError(HybridPagesError, ValueError):
    """A model's configuration cannot be read, or the model is not known here."""


class RanksError(ModelError):
    """Ranks, of tensors, pipeline stages or a context, with which vLLM does not start a model."""


def find(model: str, revision: str = "main") -> Path:
    """Finds the configuration file of a model on this machine.

    Args:
        model: a folder, a configuration file, or a name on the hub whose files are in the cache.
        revision: of the name on the hub.

    Raises:
        ModelError: there is no such file.
    """
    path = Path(model)
    if path.exists() and not path.is_dir():  # a file, or a pipe
        return path
    if path.is_dir():
        if (path / "config.json").is_file():
            return path / "config.json"
        raise ModelError(f"{model}: expected a config.json in this folder, found none")
    cache = _hub_cache()
    snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    ref = snapshots.parent / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    file = snapshots / commit / "config.json"
    if model.count("/") <= 1 and file.is_file():
        return file
    raise ModelError(
        f"{model}: expected a model's folder, its config.json, or the name of a model in the hub "
        f"cache {cache} (revision {revision}), found none of these: `hf download {model} "
        "config.json` fetches it"
    )


def _hub_cache() -> Path:
    """The folder of huggingface_hub's downloads (``huggingface_hub/constants.py``)."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = os.environ.get("HF_HOME") or cache / "huggingface"
    return Path(home).expanduser() / "hub"


def _object(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(f"{file}: expected a readable file: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: expected JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file}: expected a JSON object, found {type(values).__name__}")
    return values


class Config:
    """The values of a configuration. Those of an inner language model come before the outer ones.

    Every error names the file and the family.
    """

    def __init__(
        self, file: str, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> None:
        """file: for errors. values: from the file. defaults: of fields that are not in the file.

        Raises:
            ModelError: the configuration of the language model is not an object.
        """
        self.file = file
        self.outer = values
        inner: Any = next((values[key] for key in _INNER if key in values), {})
        if not isinstance(inner, dict):
            raise ModelError(f"{file}: text_config: expected a JSON object")
        self._values = {**(defaults or {}), **values, **inner}

    @classmethod
    def read(cls, file: Path) -> Config:
        """Reads a configuration file.

        Old versions of ModelOpt write the quantisation into another file beside ``config.json``,
        which is read, too (``transformers_utils/config.py: get_config``).

        Raises:
            ModelError: a file cannot be read or is not a JSON object.
        """
        values = _object(file)
        beside = file.with_name("hf_quant_config.json")
        if file.name == "config.json" and "quantization_config" not in values and beside.is_file():
            values["quantization_config"] = _object(beside)
        return cls(str(file), values)

    def over(self, defaults: Mapping[str, Any]) -> Config:
        """This configuration with defaults for missing fields."""
        return Config(self.file, self.outer, defaults)

    @property
    def name(self) -> str:
        """The name of the model in errors: its architecture, or else its type."""
        return self.architecture or str(self.get("model_type", "unnamed"))

    @property
    def architecture(self) -> str | None:
        """vLLM's name of the class of the outer model; None if the file names none."""
        found = self.outer.get("architectures")
        return str(found[0]) if isinstance(found, list) and found else None

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field, unchecked; the default where it is missing or null."""
        found = self._values.get(field)
        return default if found is None else found

    def number(self, field: str, default: Any = _MISSING) -> int:
        """The value of a field, which has to be a positive integer.

        Raises:
            ModelError: another value, or a missing one without a default.
        """
        found = self.get(field, None if default is _MISSING else default)
        if type(found) is not int or not 0 < found < 1 << 32:
            raise self.error(f"{field}: expected a positive integer, found {found!r}")
        return found

    def amount(self, field: str, default: Any = None, least: int = 0) -> Any:
        """The value of a field, an integer; the default where it is missing or null.

        Raises:
            ModelError: another value, or one less than ``least``.
        """
        found = self.get(field)
        if found is None:
            return default
        if type(found) is not int or not least <= found < 1 << 32:
            raise self.error(f"{field}: expected an integer from {least} on, found {found!r}")
        return found

    def text(self, field: str, default: str) -> str:
        """The value of a field, which has to be a string.

        Raises:
            ModelError: another value.
        """
        found = self.get(field, default)
        if not isinstance(found, str):
            raise self.error(f"{field}: expected a string, found {found!r}")
        return found

    def names(self, *fields: str) -> list[str] | None:
        """The value of the first field that exists, a list of strings; None if none exists.

        Raises:
            ModelError: another value.
        """
        for field in fields:
            found = self.get(field)
            if found is not None:
                if not isinstance(found, list) or not all(isinstance(it, str) for it in found):
                    raise self.error(f"{field}: expected a list of strings, found {found!r}")
                return found
        return None

    def inner(self, field: str) -> Config:
        """The value of a field, an object, as a configuration.

        Raises:
            ModelError: another value.
        """
        found = self.get(field)
        if not isinstance(found, dict):
            raise self.error(f"{field}: expected a JSON object, found {found!r}")
        return Config(self.file, {"architectures": [self.name], **found})

    def dtype(self) -> str:
        """The dtype that vLLM chooses to compute the model in, from the configuration alone
        (``transformers_utils/model_arch_config_convertor.py: get_torch_dtype``,
        ``config/model.py: _resolve_auto_dtype``): float32 becomes bfloat16.

        Raises:
            ModelError: the configuration has no dtype, or one that is not known.
        """
        found = next(
            (
                it
                for values in (self.outer, self._values)
                for it in (values.get("dtype"), values.get("torch_dtype"))
                if it is not None
            ),
            None,
        )
        if found is None:
            raise self.error(
                "found no dtype, and vLLM would look at the weights: say it with --dtype"
            )
        if not isinstance(found, str) or found not in TYPE_BYTES:
            raise self.error(f"dtype: expected {', '.join(TYPE_BYTES)}, found {found!r}")
        return "bfloat16" if found == "float32" else found

    def error(self, found: str, kind: type[ModelError] = ModelError) -> ModelError:
        """An error whose text begins with the file and the family."""
        return kind(f"{self.file} ({self.name}): {found}")
