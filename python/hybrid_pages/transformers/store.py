"""Pages and checkpoints of one model's caches in host memory: snapshot and restore."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from hybrid_pages import InvalidArgumentError, LeaseEntry, ReadLease
from hybrid_pages.adapter.admission import last_boundary
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.adapter.entries import Checksums
from hybrid_pages.adapter.keys import Prefix
from hybrid_pages.adapter.memory import require_memory
from hybrid_pages.adapter.pool import budget_of, require_policy
from hybrid_pages.adapter.remote import DEADLINE_MS as REMOTE_DEADLINE_MS
from hybrid_pages.adapter.remote import Admit
from hybrid_pages.adapter.store import EntryStore
from hybrid_pages.adapter.tiers import TierSettings, require_block_tokens
from hybrid_pages.transformers import layers
from hybrid_pages.transformers.cache_io import Reader, Staging, States
from hybrid_pages.transformers.cache_io import Writer as _Writer
from hybrid_pages.transformers.identity import (
    WeightsDigest,
    disk_facts,
    has_peft_adapters,
    model_identity,
)
from hybrid_pages.transformers.layout import CacheTensor
from hybrid_pages.transformers.model_watch import WatchedModels
from hybrid_pages.transformers.packed import PackedPrefixes, deepest_boundary, packed_keys
from hybrid_pages.transformers.probe import read_layout
from hybrid_pages.transformers.versions import UnsupportedError, warn_if_untested

_log = logging.getLogger(__name__)


class CacheStore(EntryStore):
    """Pages and checkpoints of one model's caches, in memory of the host.

    The caches are ``DynamicCache`` or ``StaticCache`` objects of one row; entries of one kind serve
    the other. A row of a batch has to be taken out of it first. A store cannot see which model
    filled a cache. It rejects one of other layers, shapes or dtypes; a model with other weights has
    to be kept apart by the caller.

    Not thread-safe: one call at a time.

    Args:
        model: a causal language model, on the device that its caches will be on. Two tokens are run
            through it to find the layout of its caches.
        host_gb: host memory for pages and checkpoints, in GiB; ``"auto"`` for half of what is free.
        block_tokens: tokens per block; prefixes are cut into blocks.
        policy: which entries stay when the budget is full, and which boundaries get a checkpoint.
        weights: how the model's weights enter the geometry's identity: "sampled" digests 64
            elements of every tensor, "full" every byte.
        verify_on_load: compare checksums before restored bytes are used.
        disk_path: directory for what outlives the process, which :class:`PrefixCache` finds again
            for the same model; :meth:`snapshot` cannot tell what filled a cache, so what it stores
            is not found after the end. Every byte of the weights is read once, whatever ``weights``
            says.
        disk_gb: quota of the files in it, in GiB; needed with disk_path.
        disk_deadline_ms: how long a restore waits for the disk.
        remote_url: store that machines share, below the disk if there is one; see docs/remote.md.
            As with disk_path, every byte of the weights is read once.
        remote_deadline_ms: how long a restore waits for the store.
        remote_admit: "auto" writes what a second call has used, "all" everything.
        encrypt_key: a file with the key that disk_path and remote_url are encrypted with, or
            "env:NAME" for an environment variable; see docs/encryption.md.

    Raises:
        UnsupportedError: the model or its cache is of a kind that cannot be stored.
        SettingsError: a setting is of the wrong type, impossible, or without another that it needs.
        BudgetError: host_gb or disk_gb cannot hold one entry of each kind, is more than there is,
            or, of host_gb, not above 0.
        DiskError, ForeignError: disk_path cannot be used, another process uses it, or something
            else is in it.
        RemoteError: remote_url cannot be used.
    """

    def __init__(
        self,
        model: Any,
        *,
        host_gb: float | str = 4.0,
        block_tokens: int = 64,
        policy: str = "reuse",
        weights: WeightsDigest = "sampled",
        verify_on_load: bool = False,
        disk_path: str | os.PathLike[str] = "",
        disk_gb: float = 0.0,
        disk_deadline_ms: int = DEADLINE_MS,
        remote_url: str = "",
        remote_deadline_ms: int = REMOTE_DEADLINE_MS,
        remote_admit: Admit = "auto",
        encrypt_key: str | os.PathLike[str] | None = None,
    ) -> None:
        require_block_tokens(block_tokens)
        require_policy(policy)
        budget = budget_of(host_gb)
        require_memory(budget)
        tiers = TierSettings.read(
            host_gb=budget,
            disk_path=disk_path,
            disk_gb=disk_gb,
            disk_deadline_ms=disk_deadline_ms,
            remote_url=remote_url,
            remote_deadline_ms=remote_deadline_ms,
            remote_admit=remote_admit,
            encrypt_key=encrypt_key,
        )
        tiers.require_below()
        require_model(model)
        warn_if_untested()
        lasting = bool(tiers.lasting)
        self.weights: WeightsDigest = "full" if lasting else weights
        self.layout = read_layout(model, block_tokens, model_identity(model, self.weights))
        super().__init__(
            self.layout.geometry, tiers, policy=policy, facts=disk_facts(model), log=_log
        )
        self.lock = threading.RLock()
        self.models = WatchedModels(lasting=lasting)
        self.models.watch(model, self.layout)
        self._packed = PackedPrefixes()
        self._verify = verify_on_load
        self._staging = Staging(self.layout, self.arena)

    def snapshot(self, cache: Any, token_ids: Any, *, cache_salt: str = "") -> int:
        """Stores the full blocks of a live cache, and its states if it stands on a boundary.

        A cache longer than a sliding window can be resumed only where it stands, on a boundary.

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
        keys = Prefix(ids, self.layout.block_tokens).keys
        with self.using(cache_salt) as namespace:
            if not keys:
                return 0
            on_boundary = seen % self.layout.block_tokens == 0
            states = self.states(cache) if on_boundary else {}
            end, packed = deepest_boundary(self.layout, cache, len(keys))
            packed &= bool(states) or not self.layout.has_states
            self._put(namespace, keys, cache, {} if packed else states)
            if packed:
                self._put(namespace, packed_keys(keys[:end]), cache, states, packed=end)
                if self.index.lookup(namespace, packed_keys(keys[:end])).blocks == end + 1:
                    self._packed.add(namespace, keys[end - 1])
                    return end * self.layout.block_tokens
            return self.index.lookup(namespace, keys).blocks * self.layout.block_tokens

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
        keys = Prefix(ids, self.layout.block_tokens).keys
        limit = last_boundary(ids.numel(), self.layout.block_tokens)
        with self.using(cache_salt) as namespace:
            keys, packed = self._deepest(namespace, keys, limit)
            with self.entries.reach(namespace, keys, limit=len(keys)) as reach:
                # A tier below may have been too late: then the host's hit is shallower.
                whole = packed and reach.blocks == len(keys)
                end = reach.blocks - whole
                restored = self.entries.load(
                    reach, lambda leases, _: self.copy_in(leases, end, cache, packed=whole)
                )
            return end * self.layout.block_tokens if restored else 0

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        super().clear()
        self._packed.clear()

    def close(self) -> None:
        """Ends the copy threads, and the use of the store. The second call does nothing."""
        self._staging.close()
        super().close()

    def _put(
        self,
        namespace: int,
        keys: Sequence[bytes],
        cache: Any,
        states: States,
        packed: int | None = None,
    ) -> None:
        self.entries.store(
            namespace,
            keys,
            lambda entries: self.copy_out(entries, cache, states, packed),
            first_held=lambda index: self.first_held(index, cache),
            states=bool(states),
        )

    def _deepest(self, namespace: int, keys: list[bytes], limit: int) -> tuple[list[bytes], bool]:
        """The keys of the deepest prefix of at most so many blocks, and whether it is packed."""
        blocks = self.index.lookup(namespace, keys, limit=limit).blocks
        for end in self._packed.deepest(namespace, keys, first=blocks, limit=limit):
            packed = packed_keys(keys[:end])
            if self.index.lookup(namespace, packed).blocks == len(packed):
                return packed, True
            self._packed.drop(namespace, keys[end - 1])
        return keys[:limit], False

    # ---- for PrefixCache

    def using(self, salt: str, state: str = "") -> AbstractContextManager[int]:
        """The namespace of a salt and a state of the model, held in a ``with`` block.

        state: without one, the namespace is of this process alone, if anything outlives it.
        """
        return super().using(salt, state or self.models.states.process)

    def states(self, cache: Any) -> dict[CacheTensor, torch.Tensor]:
        """The recurrent states of a cache, as views of its tensors."""
        held = {
            index: layers.states(layer)
            for index, layer in enumerate(cache.layers)
            if layers.has_states(layer)
        }
        return {
            spec: held[spec.layer][spec.kind, spec.index]
            for spec in self.layout.arrays()
            if spec.is_state
        }

    def copy_out(
        self,
        entries: Sequence[LeaseEntry],
        cache: Any,
        states: States | None,
        packed: int | None = None,
    ) -> Checksums:
        """Copies pages of a cache, and states, into their slots.

        packed: the number of blocks of the prefix, if it is packed.

        Raises:
            TransferError: a copy failed.
            UnsupportedError: a layer has begun to keep something that cannot be copied.
        """
        for index, layer in enumerate(cache.layers):
            layers.require_known(index, layer)
        return self._staging.store(entries, Reader(self.layout, cache, states, packed))

    def copy_in(
        self, leases: Iterator[ReadLease], blocks: int, cache: Any, *, packed: bool = False
    ) -> None:
        """Copies the entries of leases, which cover the first blocks, into a fresh cache: all of
        them, or none.

        Raises:
            TransferError: a copy failed; the cache is as it was.
        """
        writer = _Writer(self.layout, blocks, packed=packed)
        for lease in leases:
            self._staging.load(lease.entries, writer, verify=self._verify)
        writer.adopt(cache)

    def first_held(self, class_index: int, cache: Any) -> int:
        """The first token that all layers of a class still have."""
        return self.layout.first_held(class_index, cache)


def require_model(model: Any) -> None:
    """Rejects a model that is not a causal language model with weights in memory.

    Raises:
        UnsupportedError: what was expected and found.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config") or not hasattr(model, "generate"):
        raise UnsupportedError(
            f"model: expected a transformers model that generates, found {type(model).__name__}"
        )
    if has_peft_adapters(model):
        raise UnsupportedError("model: expected one without adapters, found some: merge them first")
    if config.is_encoder_decoder or config.get_text_config(decoder=True) is not config:
        raise UnsupportedError(
            f"model: expected a decoder of text alone, found {type(model).__name__}: load it as a "
            "causal language model"
        )
    if any(tensor.device.type == "meta" for tensor in model.parameters()):
        raise UnsupportedError("model: expected weights in memory, found some on the meta device")


def _row(token_ids: Any) -> torch.Tensor:
    try:
        ids = torch.as_tensor(token_ids)
    except (ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"token_ids: expected integers [tokens] or [1, tokens], found others: {error}"
        ) from None
    if ids.dim() == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.dim() != 1:
        raise InvalidArgumentError(
            f"token_ids: expected [tokens] or [1, tokens], found {list(ids.shape)}"
        )
    return ids.to(torch.int64)
