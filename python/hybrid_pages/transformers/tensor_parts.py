"""Finds the parts of a tensor: its own memory, tensors inside it, and other values.

Quantised weights, for example, have scales. A subclass of torch.Tensor names its inner tensors by
``__tensor_flatten__``, or keeps them in attributes: its own, or those of objects in them, such as
``quant_state`` of bitsandbytes.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""The types of values that are compared by their contents."""
CODE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_WHOLE = (*PLAIN, *CODE, torch.nn.Module, np.ndarray, functools.partial)
# Attributes that loading and compiling a model leave on its tensors.
_LEFT = ("_is_hf_initialized", "_dynamo_")
_CONTEXT = "__tensor_flatten__"
_RAW = {torch.quint8: torch.uint8, torch.qint8: torch.uint8, torch.qint32: torch.int32}
# The inner tensors of torch's kinds of tensors without strided memory.
_LAYOUTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@dataclass
class Parts:
    """The parts of a tensor by path.

    tensors: those whose memory can be read. values: everything else. unread: the errors of tensors
    that cannot be read.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


def parts(tensor: torch.Tensor) -> Parts:
    """The parts of a tensor. Never fails: errors of what cannot be read are in ``unread``."""
    if is_plain(tensor):
        return Parts({"": tensor})
    walk = _Walk()
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        try:
            walk.tensor("", tensor)
        except Exception as error:  # code of a foreign class ran, which may raise anything
            walk.found.unread[""] = _said(error)
    return walk.found


def plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own inside a tensor."""
    if is_plain(tensor):
        yield tensor
    else:
        yield from parts(tensor).tensors.values()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its own memory and no other parts."""
    return (
        type(tensor) in _TENSORS
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and all(str(name).startswith(_LEFT) for name in vars(tensor))
    )


class _Walk:
    def __init__(self) -> None:
        self.found = Parts()
        self._seen: dict[int, Any] = {}

    def tensor(self, path: str, tensor: torch.Tensor) -> None:
        found, before = self.found, len(self.found.tensors)
        self._seen[id(tensor)] = tensor
        error = "it shows no memory and no other tensor"
        if type(tensor) not in _TENSORS:
            found.values[f"{path}.class"] = type(tensor)
        try:
            found.tensors |= {path + name: part for name, part in _memory(tensor)}
            if tensor.is_quantized:
                self._scales(path, tensor)
        except Exception as raised:  # a wrapper has no memory, and may raise anything
            error = _said(raised)
        if hasattr(tensor, _CONTEXT):
            try:
                names, context = tensor.__tensor_flatten__()
                inner = {name: getattr(tensor, name) for name in names}
            except Exception as raised:  # code of a foreign class, which may raise anything
                error = _said(raised)
            else:
                self._visit(f"{path}.{_CONTEXT}", context)
                self._items(path, inner)
        self._items(path, vars(tensor))
        if len(found.tensors) == before and tensor.numel():
            found.unread[path] = error

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, _WHOLE):
            self.found.values[path] = value
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                self.tensor(path, value)
            else:
                self._object(path, value)

    def _object(self, path: str, value: Any) -> None:
        items: dict[Any, Any] = {}
        if isinstance(value, dict):
            items |= value
        elif isinstance(value, (list, tuple)):
            items |= dict(enumerate(value))
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    items[name] = getattr(value, name)
        items |= getattr(value, "__dict__", {})
        if items or isinstance(value, (dict, list, tuple)):
            self.found.values[f"{path}.class"] = type(value)
            self._items(path, items)
        else:
            self.found.values[path] = value

    def _items(self, path: str, items: dict[Any, Any]) -> None:
        for name, value in list(items.items()):
            if not str(name).startswith(_LEFT):
                self._visit(f"{path}.{name}", value)

    def _scales(self, path: str, tensor: torch.Tensor) -> None:
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            self.found.values[f"{path}.q"] = (tensor.q_scale(), tensor.q_zero_point())
            return
        for name in ("scales", "zero_points"):
            self.found.tensors[f"{path}.{name}"] = getattr(tensor, f"q_per_channel_{name}")()


def _memory(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor's own memory, as tensors that torch can read; an error if it has none."""
    if tensor.layout in _LAYOUTS:
        for name in _LAYOUTS[tensor.layout]:
            yield f".{name}", getattr(tensor, name)()
        return
    storage = tensor.untyped_storage()
    storage.data_ptr()
    overridden = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if overridden or tensor.is_quantized:
        dtype = _RAW.get(tensor.dtype, tensor.dtype)
        raw = torch.empty(0, dtype=dtype, device=tensor.device)
        raw.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        yield "", raw
    else:
        yield "", tensor


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
