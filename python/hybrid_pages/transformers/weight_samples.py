"""Tells whether a model's tensors have changed, by identities, addresses and sampled elements.

Three things show a change: another object or address, torch's version counter of the tensor, and
the bytes of up to 64 elements of it, which show writes through ``.data``. The elements are picked
by views, gathered by one ``cat`` per dtype and copied to the host once per device. After a change
that shows in none of these, the user calls :meth:`PrefixCache.weights_changed`.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_pages.transformers.tensor_parts import parts, plain

SAMPLES = 64
# Dtypes that are gathered as they are. Others are one byte wide, or pairs of these.
_GATHERED = {torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32}
_GATHERED |= {torch.int16, torch.uint8}


@dataclass(frozen=True)
class WeightSample:
    """A description of tensors at one moment. It does not keep them or their memory alive.

    marks: object, address, version and shape of each tensor. samples: the bytes of its sampled
    elements.
    """

    marks: Mapping[str, tuple[Any, ...]]
    samples: Mapping[str, bytes]

    def changed(self, later: WeightSample) -> list[str]:
        """The names of the tensors that differ in a later sample."""
        names = [name for name in self.marks if name not in later.marks]
        for name, mark in later.marks.items():
            before = self.marks.get(name)
            # Weak references are compared by identity: == would compare the tensors.
            if (
                before is None
                or before[0] is not mark[0]
                or before[1:] != mark[1:]
                or self.samples[name] != later.samples[name]
            ):
                names.append(name)
        return names


class WeightSampler:
    """Reads samples of tensors. The plan for picking elements of a tensor is made once."""

    def __init__(self) -> None:
        self._plans: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def read(
        self, tensors: Mapping[str, torch.Tensor], replaced: Collection[str] = ()
    ) -> WeightSample:
        """The marks and samples of tensors now.

        replaced: names of tensors that passes make anew without a change. Of these only the samples
        are compared.

        Raises:
            RuntimeError, NotImplementedError, TypeError: a kind of tensor that torch cannot sample.
        """
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            read = [(name, part) for name, tensor in tensors.items() for part in plain(tensor)]
            samples: dict[str, bytes] = dict.fromkeys(tensors, b"")
            raw = self._sample([part for _, part in read])
            for (name, _), data in zip(read, raw, strict=True):
                samples[name] = samples[name] + data if samples[name] else data
            marks: dict[str, tuple[Any, ...]] = {
                name: (weakref.ref(tensor), _version(tensor)) for name, tensor in tensors.items()
            }
            for name, part in read:
                if name in replaced:
                    marks[name] = (None, part.shape, part.dtype)
                    continue
                marks[name] += (part.data_ptr(), _version(part), part.shape, part.dtype)
        return WeightSample(marks, samples)

    def _sample(self, tensors: Sequence[torch.Tensor]) -> list[bytes]:
        picked: dict[torch.device, dict[torch.dtype, list[tuple[int, torch.Tensor]]]] = {}
        for index, tensor in enumerate(tensors):
            view = self._pick(tensor)
            picked.setdefault(view.device, {}).setdefault(view.dtype, []).append((index, view))
        found = [b""] * len(tensors)
        for groups in picked.values():
            gathered = [
                torch.cat([view for _, view in group]).view(torch.uint8)
                for group in groups.values()
            ]
            raw = (gathered[0] if len(gathered) == 1 else torch.cat(gathered)).cpu()
            data, start = raw.numpy().tobytes(), 0
            for group in groups.values():
                for index, view in group:
                    end = start + view.numel() * view.element_size()
                    found[index], start = data[start:end], end
        return found

    def _pick(self, tensor: torch.Tensor) -> torch.Tensor:
        """Some elements of a tensor, in one dimension. A view if the tensor is dense."""
        if tensor.dtype not in _GATHERED:
            tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor.view(torch.uint8)
        key = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.device)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _plan(tensor)
        if len(plan) == 3:
            return tensor.as_strided(*plan)
        return tensor[plan[0]].reshape(-1)


def _plan(tensor: torch.Tensor) -> tuple[Any, ...]:
    """How to pick elements: size, stride and offset of a view, or indices if the tensor is not
    dense."""
    count = min(SAMPLES, tensor.numel())
    step = max(1, (tensor.numel() - 1) // max(count - 1, 1))
    if _is_dense(tensor):
        return (count,), (step,), tensor.storage_offset()
    places = torch.arange(count, device=tensor.device) * step
    return (torch.unravel_index(places, tensor.shape),)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return tensor.numel() == 0
            expected *= size
    return True


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def same_weights(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    """Whether the tensors of two models are equal, by comparing every element."""
    if left.keys() != right.keys():
        return False
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        return all(_same(tensor, right[name]) for name, tensor in left.items())


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left is right:
        return True
    one, other = parts(left), parts(right)
    if one.unread or other.unread or one.tensors.keys() != other.tensors.keys():
        return False
    return all(_equal(part, other.tensors[path]) for path, part in one.tensors.items())


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    if (left.shape, left.dtype, left.device) != (right.shape, right.dtype, right.device):
        return False
    raw = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right))
    return torch.equal(*raw)
