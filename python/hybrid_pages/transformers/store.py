"""Pages and checkpoints of one model's caches in host memory: snapshot and restore."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_pages import (
    Arena,
    BudgetError,
    Cache,
    Geometry,
    InvalidArgumentError,
    ReadLease,
    TransferError,
)
from hybrid_pages.budget import slots_of
from hybrid_pages.transformers import layers
from hybrid_pages.transformers.identity import WeightsDigest, adapters, model_identity
from hybrid_pages.transformers.keys import Prefix
from hybrid_pages.transformers.layout import KEYS, Layout, Part
from hybrid_pages.transformers.probe import read_layout
from hybrid_pages.transformers.staging import Staging
from hybrid_pages.transformers.support import Closing, UnsupportedError
from hybrid_pages.transformers.watch import Models

States = Mapping[Part, torch.Tensor]
"""Recurrent states at one boundary, each with the batch row in front."""


@dataclass
class Moved:
    """What a store has copied so far."""

    stored_bytes: int = 0
    restored_bytes: int = 0
    failed_loads: int = 0
    failed_stores: int = 0


class CacheStore(Closing):
    """Pages and checkpoints of one model's caches, in memory of the host.

    The caches are ``DynamicCache`` or ``StaticCache`` objects of one row; entries of one kind serve
    the other. A row of a batch has to be taken out of it first. A store cannot see which model
    filled a cache: it refuses one of other layers, shapes or dtypes, but the same model with other
    weights is for the caller to keep apart.

    Not thread-safe: one call at a time.

    Args:
        model: a causal language model, on the device that its caches will be on. Two tokens are run
            through it to see what its caches are made of.
        host_gb: host memory for pages and checkpoints, in GiB.
        block_tokens: tokens a block: what a prefix is cut into.
        policy: which entries stay when the budget is full, and which boundaries get a checkpoint.
        weights: how the model's weights enter the geometry's identity: "sampled" digests 64
            elements of every tensor, "full" every byte.
        verify_on_load: compare checksums before restored bytes are used.

    Raises:
        UnsupportedError: the model or its cache is of a kind that cannot be stored.
        BudgetError: host_gb cannot hold one entry of each kind.
    """

    def __init__(
        self,
        model: Any,
        *,
        host_gb: float = 4.0,
        block_tokens: int = 64,
        policy: str = "reuse",
        weights: WeightsDigest = "sampled",
        verify_on_load: bool = False,
    ) -> None:
        require_model(model)
        if not host_gb > 0:
            raise BudgetError(f"host_gb: expected more than 0, found {host_gb}")
        identity = model_identity(model, weights)
        self.layout = read_layout(model, block_tokens, identity)
        geometry = self.layout.geometry
        slot_bytes = geometry.suggest_slot_bytes()
        slots = slots_of(host_gb, geometry, slot_bytes)
        self.index = Cache(geometry, slot_bytes=slot_bytes, slots=slots, policy=policy)
        self.arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=slots)
        self.moved = Moved()
        self.lock = threading.RLock()
        self.models = Models()
        self.models.watch(model, self.layout)
        self._verify = verify_on_load
        self._staging = Staging(self.layout, self.arena)

    @property
    def geometry(self) -> Geometry:
        """What pages and checkpoints of the model are made of."""
        return self.layout.geometry

    def snapshot(self, cache: Any, token_ids: Any, *, cache_salt: str = "") -> int:
        """Stores the full blocks of a live cache, and its states if it stands on a boundary.

        Args:
            cache: of one row; it is read only.
            token_ids: all the tokens that the cache has seen, ``[tokens]`` or ``[1, tokens]``.
            cache_salt: what is stored is found again under the same salt only.

        Returns:
            How many of the tokens can be resumed from now: the deepest boundary.

        Raises:
            InvalidArgumentError: a batch, or a cache that has not seen exactly these tokens.
            ForeignError: a cache of another model: layer, expected and found.
            UnsupportedError: a kind of cache or layer that cannot be moved.
            TransferError: the copy failed; nothing was stored.
        """
        self.layout.require_match(cache)
        ids, seen = _row(token_ids), self.layout.seen(cache)
        if seen != ids.numel():
            raise InvalidArgumentError(
                f"token_ids: expected the {seen} tokens that the cache has seen, found "
                f"{ids.numel()}: was it cropped or advanced meanwhile?"
            )
        prefix = Prefix(ids, self.layout.block_tokens)
        with self.using(cache_salt) as namespace:
            if prefix.keys:
                on_boundary = seen % self.layout.block_tokens == 0
                states = self.states(cache) if on_boundary else None
                self.publish(namespace, prefix.keys, cache, first=0, states=states)
            return self.index.lookup(namespace, prefix.keys).blocks * self.layout.block_tokens

    def restore(self, cache: Any, token_ids: Any, *, cache_salt: str = "") -> int:
        """Brings the longest known prefix of ``token_ids[:-1]`` back into a fresh cache.

        The last token is left, since a model has to compute at least one. Tensors that a static
        cache has already keep their addresses.

        Args:
            cache: of one row, that has seen no token yet. Untouched if nothing is restored.
            token_ids: ``[tokens]`` or ``[1, tokens]``.
            cache_salt: as it was stored.

        Returns:
            How many tokens the cache has seen now; 0 for none. A load that fails, by a checksum
            for example, drops what it would have loaded and restores nothing.

        Raises:
            InvalidArgumentError: a batch, a cache that is not fresh, or a static one that has no
                room for all of token_ids.
            ForeignError: a cache of another model: layer, expected and found.
            UnsupportedError: a kind of cache or layer that cannot be moved.
        """
        self.layout.require_match(cache)
        self.layout.require_fresh(cache)
        ids = _row(token_ids)
        for index, layer in enumerate(cache.layers):
            room = layers.capacity(layer)
            if room is not None and ids.numel() > room:
                raise InvalidArgumentError(
                    f"cache layer {index}: expected room for {ids.numel()} tokens, found {room}"
                )
        prefix = Prefix(ids, self.layout.block_tokens)
        limit = max(ids.numel() - 1, 0) // self.layout.block_tokens
        with self.using(cache_salt) as namespace:
            return self.load(namespace, prefix.keys, cache, limit=limit)

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        self.index.clear()

    def close(self) -> None:
        """Ends the copy threads; the store is of no use any more. Nothing the second time."""
        self._staging.close()

    # ---- what PrefixCache needs besides

    def namespace(self, salt: str, state: str = "") -> int:
        """The namespace of a salt, for what was computed in one state of a model; held from here
        on, see ``Cache.namespace``."""
        name = f"{state}/{salt}".encode()
        return self.index.namespace(hashlib.blake2b(name, digest_size=32).digest())

    @contextmanager
    def using(self, salt: str, state: str = "") -> Iterator[int]:
        """As :meth:`namespace`, held until the block's end; then it goes with its last entry."""
        number = self.namespace(salt, state)
        try:
            yield number
        finally:
            self.index.release_namespace(number)

    def states(self, cache: Any) -> dict[Part, torch.Tensor]:
        """The recurrent states of a cache, as they lie in it."""
        held = {
            index: layers.states(layer)
            for index, layer in enumerate(cache.layers)
            if layers.has_states(layer)
        }
        return {
            part: held[part.layer][part.kind, part.index]
            for part in self.layout.parts()
            if part.is_state
        }

    def publish(
        self,
        namespace: int,
        keys: Sequence[bytes],
        cache: Any | None,
        *,
        first: int,
        states: States | None,
    ) -> None:
        """Stores the blocks [first, end) of a cache and the states after the last of them.

        keys: of the blocks [0, end). Without a cache only the states are stored. A window layer may
        have dropped some of a block's tokens: such a page is left out.

        Raises:
            TransferError: a copy failed; nothing was published.
        """
        end = len(keys)
        wanted = []
        for item in self.geometry.classes:
            if item.kind == "recurrent":
                wanted += [(item.index, end - 1)] if states else []
            elif cache is not None:
                start = max(first, self._first_whole(item.index, cache))
                wanted += [(item.index, block) for block in range(start, end)]
        with self.index.reserve(namespace, keys, wanted) as lease:
            entries = lease.entries
            if not entries:
                return
            read = _Reader(self.layout, cache, states)
            lease.commit(self._staging.store(entries, read))
        classes = self.geometry.classes
        self.moved.stored_bytes += sum(classes[e.class_index].entry_bytes for e in entries)

    def load(self, namespace: int, keys: Sequence[bytes], cache: Any, *, limit: int) -> int:
        """Restores the joint hit, at most limit blocks, into a fresh cache of this layout."""
        lease = self.index.acquire(namespace, keys, limit=limit)
        if lease is None:
            return 0
        with lease:
            writer = _Writer(self.layout, lease)
            try:
                self._staging.load(lease.entries, writer, verify=self._verify)
            except TransferError:
                self.moved.failed_loads += 1
                self.index.invalidate(lease)
                return 0
            writer.adopt(cache)
            classes = self.geometry.classes
            loaded = sum(classes[entry.class_index].entry_bytes for entry in lease.entries)
            self.moved.restored_bytes += loaded
            return lease.blocks * self.layout.block_tokens

    def _first_whole(self, class_index: int, cache: Any) -> int:
        """The first block all of whose tokens the layers of a class still have."""
        size = self.layout.block_tokens
        held = [
            layers.tokens(cache.layers[part.layer]).first
            for part in self.layout.class_parts(class_index)
            if part.kind == KEYS
        ]
        return -(-max(held) // size)


class _Reader:
    """Reads blocks and states out of a live cache."""

    def __init__(self, layout: Layout, cache: Any | None, states: States | None) -> None:
        self._size, self._states = layout.block_tokens, states or {}
        self._held = (
            {}
            if cache is None
            else {
                part.layer: layers.tokens(cache.layers[part.layer])
                for part in layout.parts()
                if part.kind == KEYS
            }
        )

    def __call__(self, part: Part, block: int, count: int) -> torch.Tensor:
        if part.is_state:
            return self._states[part].detach()
        held = self._held[part.layer]
        start = block * self._size - held.first
        tensor = held.keys if part.kind == KEYS else held.values
        row = tensor.detach()[0, :, start : start + count * self._size]
        return row.unflatten(1, (count, self._size)).transpose(0, 1)


class _Writer:
    """Collects what a lease covers in tensors of its own; a cache sees it when it is whole."""

    def __init__(self, layout: Layout, lease: ReadLease) -> None:
        self._layout, self._seen = layout, lease.blocks * layout.block_tokens
        self._first: dict[Part, int] = {}
        self._tensors: dict[Part, torch.Tensor] = {}
        for item in layout.geometry.classes:
            blocks = [e.block_index for e in lease.entries if e.class_index == item.index]
            for part in layout.class_parts(item.index):
                shape = part.shape
                if not part.is_state:
                    heads, size, dim = part.shape
                    shape = (heads, (lease.blocks - min(blocks)) * size, dim)
                self._first[part] = min(blocks)
                self._tensors[part] = torch.empty((1, *shape), dtype=part.dtype, device=part.device)

    def __call__(self, part: Part, block: int, staged: torch.Tensor) -> None:
        target = self._tensors[part]
        if not part.is_state:
            size, count = self._layout.block_tokens, staged.shape[0]
            start = (block - self._first[part]) * size
            row = target[0, :, start : start + count * size]
            target = row.unflatten(1, (count, size)).transpose(0, 1)
        target.copy_(staged, non_blocking=target.is_cuda)

    def adopt(self, cache: Any) -> None:
        """Writes the collected tensors into a fresh cache, and says so in its flags."""
        keys = {part.layer: tensor for part, tensor in self._tensors.items() if part.kind == KEYS}
        for part, tensor in self._tensors.items():
            layer = cache.layers[part.layer]
            if part.is_state:
                layers.write_state(layer, part.kind, part.index, tensor)
            elif part.kind != KEYS:
                layers.write_tokens(layer, keys[part.layer], tensor, self._seen)


def require_model(model: Any) -> None:
    """Refuses a model whose caches cannot be told or kept apart.

    Raises:
        UnsupportedError: what was expected and found.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config") or not hasattr(model, "generate"):
        raise UnsupportedError(
            f"model: expected a transformers model that generates, found {type(model).__name__}"
        )
    if adapters(model):
        raise UnsupportedError("model: expected one without adapters, found some: merge them first")
    if config.is_encoder_decoder or config.get_text_config(decoder=True) is not config:
        raise UnsupportedError(
            f"model: expected a decoder of text alone, found {type(model).__name__}: load it as a "
            "causal language model"
        )
    if any(tensor.device.type == "meta" for tensor in model.parameters()):
        raise UnsupportedError("model: expected weights in memory, found some on the meta device")


def _row(token_ids: Any) -> torch.Tensor:
    ids = torch.as_tensor(token_ids)
    if ids.dim() == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.dim() != 1:
        raise InvalidArgumentError(
            f"token_ids: expected [tokens] or [1, tokens], found {list(ids.shape)}"
        )
    return ids
