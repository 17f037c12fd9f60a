"""A description of a model's modules that tells whether two moments compute the same.

Every attribute is described by a plain value, or by the identity of an object that is held
meanwhile. Equal descriptions mean equal arithmetic.
"""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig, modeling_utils

from hybrid_pages.transformers import rope
from hybrid_pages.transformers.tensor_parts import CODE, PLAIN, is_plain, parts

_STANDARD = frozenset(vars(torch.nn.Module())) - {"training"}
# Attributes of models that no forward pass reads, or that `generate` itself writes.
_IRRELEVANT = frozenset(
    {
        "_compiled_call",
        "_ep_plan",
        "_fsdp_plan",
        "_is_hf_initialized",
        "_keep_in_fp32_modules",
        "_keep_in_fp32_modules_strict",
        "_keys_to_ignore_on_load_missing",
        "_keys_to_ignore_on_load_unexpected",
        "_keys_to_ignore_on_save",
        "_last_compile_config",
        "_no_split_modules",
        "_output_capturing_hooks_installed",
        "_pp_plan",
        "_previous_max_cache_length",
        "_skip_keys_device_placement",
        "_tp_plan",
        "all_tied_weights_keys",
        "generation_config",
        "name_or_path",
        "warnings_issued",
    }
)
_SKIPPED = _STANDARD | _IRRELEVANT
# Modules whose hooks change no output. Those of transformers only look at it or let it require
# gradients, and that of a trial acts in its own thread only.
_OWN_HOOKS = (
    "transformers.utils.output_capturing",
    "transformers.modeling_utils",
    "hybrid_pages.transformers.chunk_invariance",
)
_LIBRARIES = ("torch", "transformers", "accelerate", "huggingface_hub", "tokenizers", "builtins")
_FAST = {type(None), bool, int, str}
VOLATILE = ("_name_or_path", "transformers_version", "architectures")
"""Fields of a config that change no byte: where a model came from and who wrote its file."""


class ByIdentity:
    """An object compared by identity. It is kept alive, so that no other gets its id."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


class Described(ByIdentity):
    """An object compared by identity whose fields are described beside it, too."""

    __slots__ = ()


@dataclass(frozen=True)
class Unreadable:
    """Stands for the content of a tensor that cannot be read, and says why."""

    kind: str
    why: str


class ModuleDescription(NamedTuple):
    """One module: its class, the code of its forward, its attributes, and its children by name."""

    kind: type
    code: tuple[ByIdentity, ByIdentity]
    attributes: tuple[tuple[str, Hashable], ...]
    modules: tuple[tuple[str, str], ...]


@dataclass
class Structure:
    """The description of a model at one moment.

    modules: the description of each module, by name. tensors: those that the model computes with,
    by name. replaced: names of tensors that forward passes make anew. uncached: why the description
    does not tell what the model computes, or None.
    """

    modules: dict[str, ModuleDescription] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    uncached: str | None = None

    def key(self) -> Hashable:
        return tuple(self.modules.items())


def describe(model: Any, ignored: frozenset[str] = frozenset()) -> Structure:
    """Describes a model: the type, attributes and code of every module, and every config.

    ignored: attributes, by their full name, that forward passes are known to write.
    """
    found = Structure()
    modules = list(model.named_modules())
    names = {id(module): name for name, module in modules}
    describe = _Describer(found, names)
    for name, module in modules:
        prefix = f"{name}." if name else ""
        if module._forward_hooks or module._forward_pre_hooks:
            _note_hooks(found, name, module)
        if module.training and found.uncached is None:
            found.uncached = f"training mode of {name or 'the model'}"
        skipped = rope.derived(module) if "rope_type" in vars(module) else frozenset()
        values: list[tuple[str, Hashable]] = []
        for kind in (module._parameters, module._buffers):
            for key, tensor in kind.items() if kind else ():
                if tensor is not None and key not in skipped:
                    found.tensors[prefix + key] = tensor
                    if not is_plain(tensor):
                        values.append((key, describe.tensor(prefix + key, tensor)))
        if skipped:
            for key, tensor in rope.frequencies(module).items():
                found.tensors[prefix + key] = tensor
                found.replaced.add(prefix + key)
        attributes = vars(module)
        for key in sorted(attributes.keys() - _SKIPPED):
            if key not in skipped and not (ignored and prefix + key in ignored):
                value = attributes[key]
                if type(value) not in _FAST:
                    value = describe(prefix + key, value)
                values.append((key, value))
        children = tuple(
            (key, names[id(child)]) for key, child in module._modules.items() if child is not None
        )
        forward = type(module).forward
        code = ByIdentity(forward), ByIdentity(getattr(forward, "__code__", None))
        found.modules[name] = ModuleDescription(type(module), code, tuple(values), children)
    return found


def _note_hooks(found: Structure, name: str, module: Any) -> None:
    """Notes hooks that may change outputs: all but those of known modules."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    if any(getattr(hook, "__module__", None) not in _OWN_HOOKS for hook in hooks):
        found.uncached = f"forward hook on {name or 'the model'}"


class _Describer:
    """Describes attribute values so that they can be compared, and collects tensors in them."""

    def __init__(self, found: Structure, modules: dict[int, str]) -> None:
        self._found, self._modules = found, modules
        self._configs: dict[int, str] = {}
        self._objects: dict[int, str] = {}

    def __call__(self, name: str, value: Any) -> Hashable:
        if isinstance(value, PLAIN):
            return value if value == value else "nan"
        if isinstance(value, torch.Tensor):
            self._found.tensors[name] = value
            return "tensor" if is_plain(value) else self.tensor(name, value)
        if isinstance(value, torch.nn.Module):
            return self._module(name, value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            digest = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16)
            return (str(value.dtype), value.shape, digest.hexdigest())
        if isinstance(value, (list, tuple, deque)):
            return tuple(self(f"{name}.{i}", item) for i, item in enumerate(value))
        if isinstance(value, dict):
            return tuple((self._key(k), self(f"{name}.{k}", v)) for k, v in value.items())
        if isinstance(value, (set, frozenset)):
            return frozenset(map(self._key, value))
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return tuple(self(f"{name}.{i}", part) for i, part in enumerate(parts))
        if isinstance(value, PreTrainedConfig):
            return self._config(name, value)
        return self._object(name, value)

    def tensor(self, name: str, tensor: torch.Tensor) -> Hashable:
        """The parts of a tensor besides the memory that is sampled: paths and other values."""
        known = self._objects.get(id(tensor))
        if known is not None:
            return ("tensor of", known)
        self._objects[id(tensor)] = name
        found = parts(tensor)
        values = [(path, self(name + path, value)) for path, value in found.values.items()]
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        unread = [(path, Unreadable(kind, why)) for path, why in found.unread.items()]
        return (tuple(found.tensors), *values, *unread)

    def _module(self, name: str, module: Any) -> Hashable:
        """The name of a module of the model. The weights of a module that it does not list are not
        looked at, so the cache cannot be used."""
        known = self._modules.get(id(module))
        if known is None and self._found.uncached is None:
            self._found.uncached = f"{name} is a module that the model does not list"
        return ("module", known)

    def _object(self, name: str, value: Any) -> Hashable:
        """An object of a known library is compared by identity, any other by its fields, too."""
        library = type(value).__module__.partition(".")[0] in _LIBRARIES
        if library or isinstance(value, CODE) or not hasattr(value, "__dict__"):
            return ByIdentity(value)
        known = self._objects.get(id(value))
        if known is not None:
            return ("object of", known)
        self._objects[id(value)] = name
        fields = [(key, self(f"{name}.{key}", item)) for key, item in vars(value).items()]
        return (Described(value), tuple(fields))

    def _key(self, key: Any) -> Hashable:
        return key if isinstance(key, PLAIN) else ByIdentity(key)

    def _config(self, name: str, config: Any) -> Hashable:
        """A config. It is described where it is met first."""
        known = self._configs.get(id(config))
        if known is not None:
            return ("config of", known)
        self._configs[id(config)] = name
        fields = [(k, self(f"{name}.{k}", v)) for k, v in vars(config).items() if k not in VOLATILE]
        attention = getattr(config, "_attn_implementation", None)
        functions = modeling_utils.ALL_ATTENTION_FUNCTIONS
        function = functions.get(attention) if attention else None
        return (type(config), tuple(fields), attention, ByIdentity(function))
