"""Pages and checkpoints of one model's prompt caches in host memory: snapshot and restore."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from hybrid_pages import InvalidArgumentError, LeaseEntry, ReadLease
from hybrid_pages.adapter.admission import last_boundary
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.adapter.entries import Checksums, Reach
from hybrid_pages.adapter.keys import Prefix
from hybrid_pages.adapter.pool import require_policy
from hybrid_pages.adapter.store import EntryStore
from hybrid_pages.adapter.tiers import TierSettings, require_block_tokens
from hybrid_pages.mlx.cache_io import Reader, Staging, States, Writer, states_of
from hybrid_pages.mlx.identity import disk_facts, model_identity
from hybrid_pages.mlx.model_watch import ModelWatch
from hybrid_pages.mlx.partial_blocks import PartialBlocks, partial_key
from hybrid_pages.mlx.probe import try_model

_log = logging.getLogger(__name__)


class CacheStore(EntryStore):
    """Pages and checkpoints of one model's prompt caches, in memory of the host.

    A store cannot see which model filled a cache. It rejects one of other layers, shapes or dtypes;
    a model with other weights has to be kept apart by the caller.

    Thread-safe.

    Args:
        model: from ``mlx_lm.load``. A few tokens are run through it to find the layout of its
            caches, and to check that it remembers nothing elsewhere.
        host_gb: host memory for pages and checkpoints, in GiB; ``"auto"`` for half of what is free.
        block_tokens: tokens per block, fewer than a sliding window has.
        policy: which entries stay when the budget is full, and which boundaries get a checkpoint.
        verify_on_load: compare checksums before restored bytes are used.
        disk_path: directory for entries that outlive the process, which :class:`PrefixCache` finds
            again for the same model. Every byte of the weights is read once for that.
        disk_gb: quota of the files in it, in GiB; needed with disk_path.
        disk_deadline_ms: how long a restore waits for the disk.
        encrypt_key: a file with the key that disk_path is encrypted with, or "env:NAME" for an
            environment variable; see docs/encryption.md.

    Raises:
        UnsupportedError: the model or its cache is of a kind that cannot be stored, or, with
            disk_path, it has parts of which another process cannot tell whether they are the same.
        SettingsError: a setting that makes no sense; block_tokens is not less than a window.
        BudgetError: host_gb or disk_gb cannot hold one entry of each kind, or is more than there
            is.
        DiskError: disk_path cannot be used, or another process uses it.
        ForeignError: something else is in disk_path.
    """

    def __init__(
        self,
        model: Any,
        *,
        host_gb: float | str = 4.0,
        block_tokens: int = 32,
        policy: str = "reuse",
        verify_on_load: bool = False,
        disk_path: str | os.PathLike[str] = "",
        disk_gb: float = 0.0,
        disk_deadline_ms: int = DEADLINE_MS,
        encrypt_key: str | os.PathLike[str] | None = None,
    ) -> None:
        tiers = TierSettings.read(
            host_gb=host_gb,
            disk_path=disk_path,
            disk_gb=disk_gb,
            disk_deadline_ms=disk_deadline_ms,
            encrypt_key=encrypt_key,
        )
        require_policy(policy)
        require_block_tokens(block_tokens)
        tiers.require_here()
        # Before the watch: a model may make parts of itself when it runs for the first time.
        layout = try_model(model, block_tokens)
        self.watch = ModelWatch(model)
        weights = self.watch.weights if tiers.lasting else None
        facts = disk_facts(self.watch.lasting()) if tiers.lasting else {}
        self.layout = layout.named(model_identity(model, weights))
        super().__init__(
            self.layout.geometry,
            tiers,
            policy=policy,
            facts=facts,
            # On a Mac there is no memory that processes share by a file.
            private=True,
            log=_log,
        )
        # Snapshots are found again in this process only: the model that filled them is not known.
        self._here = f"snapshot {os.urandom(16).hex()}"
        self._tails = PartialBlocks(block_tokens)
        self._tails_lock = threading.Lock()
        self._verify = verify_on_load
        self._staging = Staging(self.layout, self.arena)

    def snapshot(self, cache: Sequence[Any], token_ids: Any, *, cache_salt: str = "") -> int:
        """Stores the pages of a live prompt cache, and its states where it stands.

        Args:
            cache: of one row; it is read only.
            token_ids: all the tokens that the cache has seen. A cache without attention layers
                does not count them: then the caller has to be right.
            cache_salt: what is stored is found again under the same salt only.

        Returns:
            How many of the tokens can be resumed from now: all of them, unless there was no room.

        Raises:
            InvalidArgumentError: a batch, or a cache that has not seen exactly these tokens.
            ForeignError: a cache of another model; names the part, expected and found.
            UnsupportedError: a kind of cache that cannot be copied.
            TransferError: the copy failed; nothing was stored.
        """
        self.layout.require_match(cache)
        ids = row(token_ids)
        seen = self.layout.seen(cache)
        if seen is not None and seen != len(ids):
            raise InvalidArgumentError(
                f"token_ids: expected the {seen} tokens that the cache has seen, found "
                f"{len(ids)}: was it trimmed or advanced meanwhile?"
            )
        with self.using(cache_salt, self._here) as namespace:
            return self.put(namespace, cache, ids)

    def restore(self, cache: Sequence[Any], token_ids: Any, *, cache_salt: str = "") -> int:
        """Brings the longest known prefix of ``token_ids[:-1]`` back into a fresh prompt cache.

        The last token is left, since a model has to compute at least one.

        Args:
            cache: as ``make_prompt_cache`` makes it. Untouched if nothing is restored.
            token_ids: of the prompt.
            cache_salt: as it was stored.

        Returns:
            How many tokens the cache has seen now; 0 for none. A load that fails, by a checksum
            for example, drops what it would have loaded and restores nothing.

        Raises:
            InvalidArgumentError: a batch, or a cache that is not fresh.
            ForeignError: a cache of another model; names the part, expected and found.
            UnsupportedError: a kind of cache that cannot be copied.
        """
        self.layout.require_match(cache)
        self.layout.require_fresh(cache)
        ids = row(token_ids)
        with self.using(cache_salt, self._here) as namespace:
            return self.get(namespace, cache, ids)

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        super().clear()
        with self._tails_lock:
            self._tails.clear()

    def close(self) -> None:
        """Ends the copy threads, and the use of the store. The second call does nothing."""
        self._staging.close()
        super().close()

    # ---- for PrefixCache and the server

    def put(self, namespace: int, cache: Sequence[Any], ids: list[int]) -> int:
        """Stores a cache that has seen ``ids``. Returns how many of them can be resumed from."""
        prefix = Prefix(ids, self.layout.block_tokens)
        keys, full = list(prefix.keys), len(prefix.keys) * self.layout.block_tokens
        before = keys[-1] if keys else b""
        if len(ids) > full:
            keys.append(partial_key(before, ids[full:]))
        if not keys:
            return 0
        states = states_of(self.layout, cache)
        self.entries.store(
            namespace,
            keys,
            lambda entries: self.copy_out(entries, cache, states, len(ids)),
            first_held=lambda index: self.first_held(index, cache),
            states=bool(states),
        )
        blocks = self.index.lookup(namespace, keys).blocks
        if blocks < len(keys):
            return min(blocks * self.layout.block_tokens, full)
        if len(ids) > full:
            with self._tails_lock:
                self._tails.add(namespace, before, len(ids) - full)
        return len(ids)

    def get(self, namespace: int, cache: Sequence[Any], ids: Sequence[int]) -> int:
        """Restores the longest known prefix of ``ids[:-1]`` into a fresh cache; its length."""
        keys = Prefix(ids, self.layout.block_tokens).keys
        limit = last_boundary(len(ids), self.layout.block_tokens)
        tokens, keys = self._deepest(namespace, keys, ids, limit)
        with self.entries.reach(namespace, keys, limit=len(keys)) as reach:
            return self._load(reach, cache, tokens, keys)

    def _deepest(
        self, namespace: int, keys: list[bytes], ids: Sequence[int], limit: int
    ) -> tuple[int, list[bytes]]:
        """The longest known prefix: how many tokens it has, and the keys of its blocks."""
        blocks = self.index.lookup(namespace, keys, limit=limit).blocks
        with self._tails_lock:
            found = list(self._tails.candidates(namespace, keys, ids, first=blocks))
        for tokens, chain in found:
            if self.index.lookup(namespace, chain).blocks == len(chain):
                return tokens, chain
        return blocks * self.layout.block_tokens, keys[:blocks]

    def _load(self, reach: Reach, cache: Sequence[Any], tokens: int, keys: list[bytes]) -> int:
        # A tier below may have been too late: then the host's hit is shallower, and has no tail.
        if reach.blocks < len(keys):
            tokens = reach.blocks * self.layout.block_tokens
        found = self.entries.load(reach, lambda leases, _: self.copy_in(leases, tokens, cache))
        return tokens if found else 0

    def copy_out(
        self, entries: Sequence[LeaseEntry], cache: Sequence[Any], states: States | None, seen: int
    ) -> Checksums:
        """Copies pages of a cache that has seen so many tokens, and states, into their slots.

        Raises:
            TransferError: a copy failed.
        """
        return self._staging.store(entries, Reader(self.layout, cache, states, seen))

    def copy_in(self, leases: Iterator[ReadLease], tokens: int, cache: Sequence[Any]) -> None:
        """Copies the entries of leases into a fresh cache: all of them, or none.

        tokens: of the prefix that they cover.

        Raises:
            TransferError: a copy failed; the cache is unchanged.
        """
        writer = Writer(self.layout, tokens)
        for lease in leases:
            self._staging.load(lease.entries, writer, verify=self._verify)
        writer.adopt(cache)

    def first_held(self, class_index: int, cache: Sequence[Any]) -> int:
        """The first token whose keys and values all parts of a class still have."""
        return Reader(self.layout, cache, None, 0).first_held(class_index)


def row(token_ids: Any) -> list[int]:
    """Token ids as a list, from an array or a sequence ``[tokens]`` or ``[1, tokens]``."""
    ids = token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)
    if len(ids) == 1 and isinstance(ids[0], (list, tuple)):
        ids = list(ids[0])
    if not all(isinstance(token, int) for token in ids):
        raise InvalidArgumentError(
            "token_ids: expected integers [tokens] or [1, tokens], found others"
        )
    return ids
