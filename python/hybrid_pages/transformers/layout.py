"""The geometry of a Hugging Face cache, and checks of caches against it.

Each tensor of a cache layer is one layer of the geometry with one segment, so that its bytes are
dense: the keys or the values of a block, a convolution's state or a recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_pages import ForeignError, InvalidArgumentError, Layer, Segment
from hybrid_pages.adapter.layout import CacheLayout, grouped
from hybrid_pages.transformers import layers
from hybrid_pages.transformers.versions import UnsupportedError

KEYS, VALUES = "keys", "values"


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of one cache layer.

    layer: index of the layer. kind: keys, values, conv or recurrent. index: among the layer's
    tensors of that kind. shape: of one block or one state, without the batch:
    ``[heads, block_tokens, dim]`` for keys and values. window: how many tokens a sliding-window
    layer sees, the present one included; None for any other.
    """

    layer: int
    kind: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    window: int | None = None

    @property
    def is_state(self) -> bool:
        return self.kind not in (KEYS, VALUES)

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.kind}.{self.index}"

    def as_layer(self) -> Layer:
        dtype = str(self.dtype).removeprefix("torch.")
        return Layer(self.name, [Segment(self.kind, dtype, self.shape)])


@dataclass(frozen=True)
class Layout(CacheLayout[CacheTensor]):
    """The tensors and the geometry of one model's caches.

    cache_layers: how many layers a cache has, those without tensors included.
    """

    cache_layers: int

    @classmethod
    def of_tensors(
        cls,
        specs: Sequence[CacheTensor],
        cache_layers: int,
        *,
        block_tokens: int,
        identity: Mapping[str, str],
    ) -> Layout:
        """The layout of caches with these tensors."""
        geometry, groups = grouped(specs, block_tokens=block_tokens, identity=identity)
        return cls(geometry, groups, cache_layers)

    @classmethod
    def of_cache(cls, cache: Any, *, block_tokens: int, identity: Mapping[str, str]) -> Layout:
        """The layout of a live ``DynamicCache`` of one row that has seen at least one token.

        Raises:
            UnsupportedError: a kind of cache or layer that cannot be copied.
            InvalidArgumentError: a cache of another batch size.
        """
        require_cache(cache)
        specs: list[CacheTensor] = []
        for index, layer in enumerate(cache.layers):
            if layers.has_tokens(layer) and layers.seen(layer):
                held = layers.tokens(layer)
                window = layers.kept(layer)
                for kind, tensor in ((KEYS, held.keys), (VALUES, held.values)):
                    _require_one_row(index, tensor)
                    specs.append(
                        CacheTensor(
                            index,
                            kind,
                            0,
                            (tensor.shape[1], block_tokens, tensor.shape[3]),
                            tensor.dtype,
                            tensor.device,
                            None if window is None else window + 1,
                        )
                    )
            if layers.has_states(layer):
                for (kind, number), state in layers.states(layer).items():
                    _require_one_row(index, state)
                    shape = tuple(state.shape[1:])
                    specs.append(CacheTensor(index, kind, number, shape, state.dtype, state.device))
        return cls.of_tensors(
            specs, len(cache.layers), block_tokens=block_tokens, identity=identity
        )

    def kept_tokens(self, cache: Any) -> int | None:
        """How many of the last tokens all window layers of a cache keep; None if there are none."""
        widths = [
            width
            for layer in cache.layers
            if layers.is_window(layer) and (width := layers.kept(layer)) is not None
        ]
        return min(widths, default=None)

    def first_held(self, class_index: int, cache: Any) -> int:
        """The first token whose keys and values all layers of a class still have."""
        return max(
            layers.tokens(cache.layers[spec.layer]).first
            for spec in self.class_arrays(class_index)
            if spec.kind == KEYS
        )

    def require_match(self, cache: Any) -> None:
        """Rejects a cache of another layout.

        Raises:
            ForeignError: a cache of another model; names the layer, expected and found.
            InvalidArgumentError: a cache of another batch size.
            UnsupportedError: a kind of cache or layer that cannot be copied.
        """
        require_cache(cache)
        if len(cache.layers) != self.cache_layers:
            raise ForeignError(
                f"cache: expected {self.cache_layers} layers, found {len(cache.layers)}"
            )
        expected: dict[int, dict[tuple[str, int], CacheTensor]] = {}
        for spec in self.arrays():
            expected.setdefault(spec.layer, {})[spec.kind, spec.index] = spec
        for index, layer in enumerate(cache.layers):
            specs = expected.get(index, {})
            _require_kinds(index, layer, list(specs.values()))
            for key, tensor in _tensors(layer).items():
                _require_one_row(index, tensor)
                if key not in specs:
                    raise ForeignError(f"cache layer {index}: expected no {key[0]}, found some")
                _require_tensor(specs[key], tensor)

    def require_fresh(self, cache: Any) -> None:
        """Rejects a cache that has seen tokens.

        Raises:
            InvalidArgumentError: names the first layer that has seen tokens.
        """
        for index, layer in enumerate(cache.layers):
            if not layers.is_fresh(layer):
                raise InvalidArgumentError(
                    f"cache layer {index}: expected a fresh cache, found one that has seen tokens"
                )

    def seen(self, cache: Any) -> int:
        """How many tokens a cache has seen.

        Raises:
            InvalidArgumentError: the attention layers disagree, or a state is missing.
        """
        counts = {
            spec.layer: layers.seen(cache.layers[spec.layer])
            for spec in self.arrays()
            if not spec.is_state
        }
        if len(set(counts.values())) != 1:
            raise InvalidArgumentError(
                f"cache: expected all attention layers at one token, found {counts}: was it "
                "cropped or advanced in parts?"
            )
        count = next(iter(counts.values()))
        missing = [
            spec.name
            for spec in self.arrays()
            if spec.is_state
            and (spec.kind, spec.index) not in layers.states(cache.layers[spec.layer])
        ]
        if count and missing:
            raise InvalidArgumentError(
                f"cache: expected states after {count} tokens, found none of {', '.join(missing)}"
            )
        return count


def require_cache(cache: Any) -> None:
    """Rejects caches of other kinds, with unknown layers, or offloaded to the host.

    Raises:
        UnsupportedError: names what was found.
    """
    from transformers.cache_utils import DynamicCache, StaticCache

    if type(cache) not in (DynamicCache, StaticCache):
        raise UnsupportedError(
            f"cache: expected a DynamicCache or StaticCache, found {type(cache).__name__}"
        )
    if cache.offloading:
        raise UnsupportedError("cache: expected one that stays on its device, found offloading")
    for index, layer in enumerate(cache.layers):
        layers.require_known(index, layer)


def _tensors(layer: Any) -> dict[tuple[str, int], torch.Tensor]:
    """The tensors that exist in a layer, even if it has seen no token."""
    found: dict[tuple[str, int], torch.Tensor] = {}
    if layers.has_tokens(layer) and layer.is_initialized and layer.keys.dim() == 4:
        found |= {(KEYS, 0): layer.keys, (VALUES, 0): layer.values}
    if layers.has_states(layer):
        found |= layers.states(layer)
    return found


def _require_kinds(index: int, layer: Any, specs: Sequence[CacheTensor]) -> None:
    windows = {spec.window for spec in specs if not spec.is_state}
    if bool(windows) != layers.has_tokens(layer):
        want, found = ("keys and values", "none") if windows else ("none", "keys and values")
        raise ForeignError(f"cache layer {index}: expected {want}, found {found}")
    if any(spec.is_state for spec in specs) and not layers.has_states(layer):
        raise ForeignError(f"cache layer {index}: expected recurrent states, found none")
    if windows:
        window, width = next(iter(windows)), layers.kept(layer)
        if (window is None) != (width is None):
            kinds = ["full attention", "a sliding window"]
            raise ForeignError(
                f"cache layer {index}: expected {kinds[window is not None]}, found "
                f"{kinds[width is not None]}"
            )
        dynamic = layers.capacity(layer) is None and not hasattr(layer, "max_cache_len")
        if window is not None and width is not None and dynamic and width + 1 != window:
            raise ForeignError(
                f"cache layer {index}: expected a window of {window} tokens, found {width + 1}"
            )


def _require_one_row(index: int, tensor: torch.Tensor) -> None:
    if tensor.shape[0] != 1:
        raise InvalidArgumentError(
            f"cache layer {index}: expected a batch of 1 row, found {tensor.shape[0]}"
        )


def _require_tensor(spec: CacheTensor, tensor: torch.Tensor) -> None:
    expected, found = spec.shape, tuple(tensor.shape[1:])
    if not spec.is_state:
        expected, found = (expected[0], expected[2]), (found[0], found[2])
    checks = (
        ("shape", expected, found),
        ("dtype", spec.dtype, tensor.dtype),
        ("device", spec.device, tensor.device),
    )
    for what, want, have in checks:
        if want != have:
            raise ForeignError(
                f"cache layer {spec.layer}, {spec.kind}: {what}: expected {want}, found {have}"
            )
