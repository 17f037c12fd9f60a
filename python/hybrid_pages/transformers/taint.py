"""Taint tracking: does what is stored or answered depend on a tensor that forward passes write?

A counter or a statistic may be written in every pass without being used. To find out, the tensor is
marked, and every operation of torch marks its results if an argument is marked. If a mark reaches
the logits or the cache, or a marked number leaves torch, the tensor matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import DynamicCache

from hybrid_pages.transformers import layers
from hybrid_pages.transformers.probe import forward
from hybrid_pages.transformers.tensor_parts import plain

# Methods by which a tensor's content leaves torch without an operation.
_LEAVES = {"numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage"}
_LENGTHS = (2, 3, 1, 1, 33)


def reaches_outputs(model: Any, tensor: Callable[[], torch.Tensor]) -> bool:
    """Whether a model's logits or caches depend on a tensor, in a few short passes.

    tensor: returns the present tensor, which a pass may replace.
    """
    marks = _Marks()
    cache = DynamicCache(config=model.config)
    held: list[torch.Tensor] = []
    for length in _LENGTHS:
        marks.add(tensor())
        with _Leaks(marks), _Flow(marks):
            held.append(forward(model, cache, length))
    for layer in cache.layers:
        if layers.has_tokens(layer) and layers.seen(layer):
            held += [layers.tokens(layer).keys, layers.tokens(layer).values]
        if layers.has_states(layer):
            held += layers.states(layer).values()
    return marks.left or any(marks.on(item) for item in held)


class _Marks:
    """The storages that are marked. They are kept alive, so that their memory is not used anew."""

    def __init__(self) -> None:
        self.left = False
        self._held: dict[int, Any] = {}

    def add(self, tensor: torch.Tensor) -> None:
        for storage in _storages(tensor):
            self._held[storage._cdata] = storage

    def on(self, tensor: torch.Tensor) -> bool:
        return any(storage._cdata in self._held for storage in _storages(tensor))


class _Flow(TorchDispatchMode):
    def __init__(self, marks: _Marks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = _tensors((args, kwargs))
        marked = any(map(self._marks.on, arguments))
        result = func(*args, **kwargs)
        if marked:
            outputs = tree_leaves(result)
            written = [
                tensor
                for argument, value in zip(func._schema.arguments, args, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write
                for tensor in _tensors(value)
            ]
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written += _tensors(kwargs.get(argument.name))
            for tensor in [*_tensors(outputs), *written]:
                self._marks.add(tensor)
            # A number has left torch, and Python may branch on it.
            if any(not isinstance(item, torch.Tensor) and item is not None for item in outputs):
                self._marks.left = True
        return result


class _Leaks(TorchFunctionMode):
    def __init__(self, marks: _Marks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _LEAVES and any(map(self._marks.on, _tensors(args))):
            self._marks.left = True
        return func(*args, **(kwargs or {}))


def _storages(tensor: torch.Tensor) -> list[Any]:
    with torch._C.DisableTorchFunction():
        return [part.untyped_storage() for part in plain(tensor)]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [item for item in tree_leaves(values) if isinstance(item, torch.Tensor)]
