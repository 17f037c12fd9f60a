"""Compares vLLM's own prefix cache with the function: every block that it has under a hash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

from .function import Prefix, expand
from .memory import LayerMemory, Memory

if TYPE_CHECKING:
    from .engine import Engine

Registered = tuple[bytes, int]
"""A hash with its group, and the block that vLLM finds by it."""


class WrongCached(AssertionError):
    """vLLM would find a block by a hash whose bytes it does not hold."""


class LocalCache:
    """Reads an engine's blocks as a request that hits them would."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._texts: dict[bytes, tuple[str, int] | None] = {}
        """By hash a request that has it, and the hash's tokens; None if requests with other bytes
        share it."""
        self._noted: dict[str, int] = {}
        """By request how many of its hashes are known."""
        self._prefixes: dict[str, Prefix] = {}
        self._checked: set[Registered] = set()
        self.states = 0
        """States that were checked, of all layers of a group together."""

    def check(self, *, anew: bool = False) -> None:
        """Checks what vLLM has registered since the last call; everything if `anew`."""
        if self._engine.versions:
            return  # vLLM keeps blocks of earlier weights until it is reset
        registered = set(self._registered())
        due = registered if anew else registered - self._checked
        self._checked = registered
        if due:
            self._note_hashes()
        by_group: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
        for key, block in due:
            text = self._texts[get_block_hash(key)]
            if text is not None:
                by_group[get_group_id(key)].append((block, *text))
        for runner in self._engine.runners:
            for group, found in by_group.items():
                for layer in runner.memory.groups[group]:
                    if not layer.drafts:
                        self._check(runner.memory, group, layer, found)
                self.states += runner.memory.recurrent[group] * len(found)

    def blocks_of(self, group: int) -> list[int]:
        """The blocks of a group that vLLM finds by a hash."""
        return [block for key, block in self._registered() if get_group_id(key) == group]

    def _registered(self) -> list[Registered]:
        pool = self._engine.scheduler.kv_cache_manager.block_pool
        others = pool.cached_block_hashes_by_block
        return [
            (key, block.block_id)
            for block in pool.blocks
            if block.block_hash is not None
            for key in (block.block_hash, *others.get(block.block_id, ()))
        ]

    def note_tail(self, name: str, tokens: int, blocks: Sequence[int]) -> None:
        """Notes blocks that now hold the last page and states of a request's first tokens, under a
        name that is no hash of them."""
        pool = self._engine.scheduler.kv_cache_manager.block_pool
        for block in blocks:
            self._texts[get_block_hash(pool.blocks[block].block_hash)] = (name, tokens)

    def _note_hashes(self) -> None:
        size = self._engine.plan.hash_block_size
        for name, result in self._engine.results.items():
            hashes = result.request.block_hashes
            for index in range(self._noted.get(name, 0), len(hashes)):
                tokens = (index + 1) * size
                known = self._texts.setdefault(hashes[index], (name, tokens))
                if known is not None and known[0] != name:
                    origin = self._engine.origin(result.request)
                    other = self._engine.origin(self._engine.results[known[0]].request)
                    if origin.identity != other.identity:
                        self._texts[hashes[index]] = None
            self._noted[name] = len(hashes)

    def _prefix(self, name: str, tokens: int) -> Prefix:
        request = self._engine.results[name].request
        prefix = self._prefixes.get(name)
        if prefix is None:
            prefix = self._prefixes[name] = Prefix(self._engine.origin(request))
        for token in request.all_token_ids[len(prefix) : tokens]:
            prefix.append(token)
        return prefix

    def _check(
        self, memory: Memory, group: int, layer: LayerMemory, found: list[tuple[int, str, int]]
    ) -> None:
        n, per_state = memory.block_tokens[group], memory.tokens_per_state[group]
        digests, rows, owners = [], [], []
        for block, name, tokens in found:
            prefix = self._prefix(name, tokens)
            if memory.recurrent[group]:
                if layer.form is not None:
                    continue  # its parts lie in several blocks until drafts are verified
                digests.append(np.array([prefix.after(tokens)], np.uint64))
                rows.append(layer.state(block)[None])
            else:
                first = (tokens - 1) // n * n
                last = tokens // per_state
                of_block = prefix.of_states(first // per_state, last, per_state)
                if layer.shard is not None:
                    of_block = of_block[layer.shard.keeps(np.arange(len(of_block)))]
                digests.append(of_block)
                rows.append(layer.tokens([block])[: len(of_block)])
            owners += [(block, name, tokens)] * len(rows[-1])
        if not rows:
            return
        expected = expand(np.concatenate(digests), layer.key, layer.token_bytes)
        wrong = (np.concatenate(rows) != expected).any(axis=1)
        if wrong.any():
            block, name, tokens = owners[int(np.flatnonzero(wrong)[0])]
            held = self._describe(memory, group, layer, block, name)
            raise WrongCached(
                f"block {block} of group {group} is cached as that of {tokens} tokens of {name}, "
                f"layer {layer.name}{held}"
            )

    def _describe(
        self, memory: Memory, group: int, layer: LayerMemory, block: int, name: str
    ) -> str:
        if not memory.recurrent[group]:
            return ""
        prefix = self._prefix(name, self._engine.results[name].request.num_tokens)
        state = layer.state(block)
        for count in range(len(prefix) + 1):
            if np.array_equal(
                expand([prefix.after(count)], layer.key, layer.token_bytes)[0], state
            ):
                return f", but holds the state after {count}"
        return ", but holds no state of it"
