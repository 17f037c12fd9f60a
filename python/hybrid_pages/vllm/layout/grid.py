"""How vLLM cuts token sequences into blocks, and which engine blocks an entry has."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from hybrid_pages import Geometry
from hybrid_pages._core import RunRules, TableColumns
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.settings import CheckpointMode
from hybrid_pages.vllm.config.speculation import draft_layers
from hybrid_pages.vllm.config.support import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.request import Request

Tables = Sequence[Sequence["int | KVCacheBlock"]]
"""The blocks of a request, or their ids, by vLLM's group."""


@dataclass(frozen=True)
class EntryBlocks:
    """The engine blocks that one group of the geometry has in an entry.

    An entry has the last ones of its block: a state is at the block's end, and from there a window
    narrower than the block sees no others.
    """

    table: int
    """The index of vLLM's group, whose block table lists them."""
    tokens: int
    """The tokens of an engine block."""
    per_block: int
    """How many engine blocks hold the tokens of a block."""
    count: int
    """How many of these an entry has, counted from the last."""
    window_tokens: int | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether it is a sliding window narrower than a block."""
        return self.window_tokens is not None and self.count < self.per_block


@dataclass(frozen=True)
class BlockGrid:
    """How vLLM cuts token sequences: N tokens per block, a hash every ``N // stride`` tokens."""

    block_tokens: int
    stride: int
    table_tokens: tuple[int, ...]
    """The tokens of an engine block, by vLLM's group."""
    groups: tuple[EntryBlocks, ...]
    """The engine blocks of an entry, by group of the geometry."""
    exports_states: bool = False
    """Whether the last step of a prefill runs past its last boundary, whose state the kernels
    export from inside the step."""
    cuts_elsewhere: bool = False
    """Whether vLLM does not end a step of a prefill at its last boundary, since its states end at
    finer boundaries."""
    drafts: int = 0
    """The most tokens of a step that may be drafts."""
    lookahead: int = 0
    """How many tokens after a position its keys and values in draft layers depend on."""
    drops_last_block: bool = False
    """Whether the last step of a prefill begins a block before its last boundary or earlier, since
    vLLM does not resume prompts with drafts from their last matching block."""
    overwritten: int = 0
    """The tokens of a state's block, if vLLM exports states into the blocks of running ones; 0 if
    it does not. See :class:`~hybrid_pages.vllm.scheduler.engine_steps.Steps`."""
    drafter_tokens: int | None = None
    """The most tokens that a request may have after a step with draft layers; None for no limit."""
    compressed: bool = False
    """Whether some page has fewer states than tokens, ranks divide a context, or vLLM resumes at
    whole blocks only."""

    @property
    def no_tails(self) -> str | None:
        """Why no state inside a block is stored or resumed from, as the metric ``skipped_tails``
        says it; None if they can be."""
        if self.drafts:
            return "drafts"
        if any(each.is_narrow for each in self.groups):
            return "narrow_window"
        return "layout" if self.compressed else None

    @property
    def hash_tokens(self) -> int:
        """How many tokens each of vLLM's prefix hashes adds."""
        return self.block_tokens // self.stride

    @property
    def state_tokens(self) -> int:
        """The tokens of an engine block of states; they are in the smallest blocks."""
        return min(each.tokens for each in self.groups)

    @property
    def keeps_inside(self) -> bool:
        """Whether vLLM itself keeps states inside blocks, as with ``--prefix-match-unit``."""
        return self.stride > 1

    def kept_inside(self, tokens: int) -> int:
        """After how many tokens of a prompt of ``tokens`` vLLM itself keeps a state inside a block;
        0 if it does not."""
        place = (tokens - 1) // self.hash_tokens * self.hash_tokens
        return place if place % self.block_tokens else 0

    def runs_on(self, tokens: int, known: int) -> int:
        """The end of the block inside which a request of ``known`` tokens goes on after ``tokens``,
        if vLLM keeps a wrong state of that boundary unless a step ends there; 0 if not.

        A step that begins inside a block of states ends with the block, so that the state there is
        that of the boundary. There is one exception: where kernels export states, a step that
        begins at a boundary of hashes runs on, if it ends behind the second boundary from there.
        vLLM then keeps the state that the step began with as that of the first boundary.
        (``Scheduler._mamba_block_aligned_split``, ``MambaManager.cache_blocks``)
        """
        size = self.state_tokens
        if not self.exports_states or tokens % self.hash_tokens or not tokens % size:
            return 0
        end = (tokens // size + 1) * size
        return end if known > end + size else 0

    def wants_tails(self, geometry: Geometry, mode: CheckpointMode) -> bool:
        """Whether states inside blocks are of use to a model, and wanted: in the mode ``align``
        those that vLLM itself keeps, in ``adaptive`` and ``all`` others, too."""
        recurrent = any(item.kind == "recurrent" for item in geometry.classes)
        wanted = mode in ("adaptive", "all") or (mode == "align" and self.keeps_inside)
        return recurrent and wanted

    def columns(self, geometry: Geometry) -> TableColumns:
        """The columns of a geometry's entries in block tables, for the core."""
        return TableColumns(
            geometry,
            [
                (each.table, each.tokens, each.per_block, each.count, each.window_tokens)
                for each in self.groups
            ],
        )

    def rules(
        self,
        geometry: Geometry,
        mode: CheckpointMode,
        known: "Callable[[Request], int] | None",
        *,
        stores_in_steps: bool = False,
    ) -> RunRules:
        """The rules of an engine's steps, for the core.

        Args:
            geometry: the layout of the entries.
            mode: which checkpoints are wanted.
            known: tells how many keys a request has; None if that is the number of its hashes.
            stores_in_steps: whether the stores of a step end before the next step begins.
        """
        recurrent = [item for item in geometry.classes if item.kind == "recurrent"]
        places = [self.groups[group] for item in recurrent for group in item.groups]
        return RunRules(
            self.block_tokens,
            self.stride,
            [(place.table, place.per_block) for place in places],
            mode,
            carries=versions.carries,
            processed=versions.processed,
            pin=versions.pin,
            unpin=versions.unpin,
            take=versions.take,
            known=known,
            exports_states=self.exports_states,
            drops_last_block=self.drops_last_block,
            drafts=self.drafts > 0,
            narrow=any(each.is_narrow for each in self.groups),
            tails=self._tails(geometry, mode, stores_in_steps),
        )

    def _tails(
        self, geometry: Geometry, mode: CheckpointMode, stores_in_steps: bool
    ) -> Literal["never", "handed_over", "in_steps", "copied"]:
        if self.no_tails is not None or not self.wants_tails(geometry, mode):
            return "never"
        if mode == "align":
            return "handed_over"
        return "in_steps" if stores_in_steps else "copied"


def block_grid(
    config: "KVCacheConfig", hash_block_size: int | None = None, *, context: int = 1
) -> BlockGrid:
    """The grid of an engine. N is the least common multiple of all groups' engine blocks, those
    that are left out included.

    Args:
        config: vLLM's plan.
        hash_block_size: how many tokens a prefix hash covers, if the plan does not tell.
        context: how many ranks divide a context (``--decode-context-parallel-size``).

    Raises:
        UnsupportedError: there is no group, vLLM's own states go wrong with these block sizes, the
            hashes do not divide the blocks, or ranks would divide the context of a window.
    """
    groups = config.kv_cache_groups
    specs = [versions.group_spec(group) for group in groups]
    kept = [(table, spec) for table, spec in enumerate(specs) if not versions.is_scratch(spec)]
    if not kept:
        raise UnsupportedError("KV cache groups: expected pages or states, found none")
    if context > 1 and any(versions.kind_of(spec) == "window" for spec in all_specs(config)):
        raise UnsupportedError(
            f"decode_context_parallel_size: expected 1 for a model with sliding windows, found "
            f"{context}: drop --decode-context-parallel-size"
        )
    tokens = tuple(versions.block_tokens(spec, context) for spec in specs)
    n, sizes = math.lcm(*tokens), [tokens[table] for table, _ in kept]
    hash_tokens = hash_block_size or versions.hash_tokens(config) or math.gcd(*sizes)
    for size in sizes:
        if size % hash_tokens:
            raise UnsupportedError(
                f"prefix match unit: expected a divisor of the block size {size}, found "
                f"{hash_tokens} tokens"
            )
    recurrent = [spec for spec in all_specs(config) if versions.kind_of(spec) == "recurrent"]
    if any(spec.block_size != min(sizes) for spec in recurrent):
        raise UnsupportedError(
            f"KV cache groups: expected states in the smallest blocks, found {sizes} tokens and "
            "states in larger ones (vLLM ends steps at multiples of the smallest, and would keep "
            "states of other boundaries than it says)"
        )
    return BlockGrid(
        block_tokens=n,
        stride=n // hash_tokens,
        table_tokens=tokens,
        groups=tuple(_entry_blocks(spec, table, tokens[table], n) for table, spec in kept),
        exports_states=bool(recurrent) and all(map(versions.exports_states, recurrent)),
        cuts_elsewhere=n != min(sizes),
        overwritten=min(sizes) if any(map(versions.exports_states, recurrent)) else 0,
        compressed=context > 1 or any(map(versions.is_compressed, all_specs(config))),
    )


def with_drafts(grid: BlockGrid, config: "VllmConfig") -> BlockGrid:
    """Adds what a grid needs for an engine that may use drafts."""
    found = config.speculative_config
    if config.aux_output_config.enabled:
        grid = replace(grid, compressed=True)  # vLLM keeps such outputs by whole blocks
    if found is None:
        return replace(grid, overwritten=0)
    drafts = found.num_speculative_tokens
    reserves = config.cache_config.prefix_cache_retention_interval != 0
    return replace(
        grid,
        drafts=drafts,
        overwritten=0 if reserves or drafts > 1 else grid.overwritten,
        drafter_tokens=versions.drafter_tokens(config, drafts) if draft_layers(found) else None,
        lookahead=config.num_prefill_lookahead_tokens,
        drops_last_block=found.use_eagle_block_drop(),
    )


def _entry_blocks(spec: "KVCacheSpec", table: int, tokens: int, n: int) -> EntryBlocks:
    kind, per_block = versions.kind_of(spec), n // tokens
    if kind == "recurrent":
        return EntryBlocks(table, tokens, per_block, 1)
    if kind == "window":
        window = versions.window_tokens(spec)
        unseen = max(0, n - window + 1) // tokens
        return EntryBlocks(table, tokens, per_block, max(1, per_block - unseen), window)
    return EntryBlocks(table, tokens, per_block, per_block)


def all_specs(config: "KVCacheConfig") -> "Iterable[KVCacheSpec]":
    """vLLM's spec of each layer that is not left out, and of each group that has no layer here."""
    for group in config.kv_cache_groups:
        here = [versions.layer_spec(group, name) for name in group.layer_names]
        for spec in here or [versions.group_spec(group)]:
            if not versions.is_scratch(spec):
                yield spec
