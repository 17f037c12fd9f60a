"""KV events: tells routers which blocks can be loaded from the host, and which from a disk.

A block is announced in a medium while a prompt could resume from that medium at the block's end,
or deeper.
Events have vLLM's own classes, hashes and block sizes, so that a router treats these blocks like
those of the engine.
"""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from hybrid_pages import Cache, InvalidArgumentError
from hybrid_pages._core import Span
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tenants import tenant_of
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked, namespace_identity
from hybrid_pages.vllm.versions import logger

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_MOST_LORAS = 4096
"""For how many pairs of a LoRA and a tenant the last namespace is remembered."""


@dataclass(frozen=True)
class EventGroup:
    """A KV cache group as events name it."""

    index: int
    block_tokens: int
    """Tokens in one of vLLM's own blocks of this group."""
    kind: str


def event_groups(config: "KVCacheConfig", context: int = 1) -> list[EventGroup]:
    """All groups of vLLM's plan. context: how many ranks divide a context."""
    return [
        EventGroup(
            index,
            versions.block_tokens(group.kv_cache_spec, context),
            versions.event_kind(group),
        )
        for index, group in enumerate(config.kv_cache_groups)
    ]


class _Part(NamedTuple):
    """A block of the cache, divided into vLLM's blocks of one size."""

    parent: bytes | None
    hashes: list[bytes]
    extra_keys: list[tuple[object, ...] | None]


class _Note(NamedTuple):
    """The facts about a block that events need beyond its hash; kept in the cache."""

    tokens: list[int]
    key: bytes
    """vLLM's hash of the block."""
    lora: tuple[int, str] | None
    session: str | None
    parts: dict[int, _Part]
    """The block's parts, by the tokens in a group's blocks."""


class Events:
    """Follows what the cache announces and puts it into vLLM's events.

    Args:
        cache: has a class of attention pages; its changes are followed from now on.
        below: whether there are tiers below the host.
        keys: of the engine's requests.
        groups: the attention groups.
        figures: count what goes wrong.
        apart: whether tenants have their own namespaces.
    """

    def __init__(
        self,
        cache: Cache,
        keys: Keys,
        groups: Sequence[EventGroup],
        figures: Figures,
        apart: bool = False,
        below: bool = False,
    ) -> None:
        self.cache, self.keys, self.grid = cache, keys, keys.grid
        self.groups, self.figures, self.apart = groups, figures, apart
        self._media = (False, True) if below else (False,)
        """The media of events: False for the host, True for the tiers below it."""
        self._announced: dict[bool, Counter[bytes]] = {it: Counter() for it in self._media}
        """How often a block is announced in a medium, by vLLM's hash. With draft layers a block has
        several keys."""
        self._emptied: object = None
        """What ``prefix_cache_of`` returned when events were last taken."""
        self._namespaces: dict[tuple[bytes, bytes], int] = {}
        """The last namespace of each LoRA and tenant, the most recently used one last."""
        cache.follow()

    def begins(self, tracked: Tracked) -> None:
        """Called when a run of a request begins.

        If its LoRA was loaded again, entries of the old weights are not announced any more.
        """
        if tracked.request.lora_request is None:
            return
        tenant = tenant_of(tracked.request.cache_salt, self.apart)
        name = namespace_identity(tracked.request), tenant
        before = self._namespaces.pop(name, None)
        self._namespaces[name] = tracked.run.namespace
        if len(self._namespaces) > _MOST_LORAS:
            del self._namespaces[next(iter(self._namespaces))]
        if before is not None and before != tracked.run.namespace:
            try:
                self.cache.retire(before)
            except InvalidArgumentError:
                return  # it was freed with its last entry

    def note(self, tracked: Tracked) -> None:
        """Describes the blocks of a request that the cache has got to know, before they are
        published."""
        request = tracked.request
        try:
            keys = self.keys.of(tracked)
            blocks = self.cache.unnoted(tracked.run.namespace, keys)
            if blocks:
                notes = {block: pickle.dumps(self._describe(request, block)) for block in blocks}
                self.cache.note(tracked.run.namespace, keys, notes)
        except Exception:
            logger.exception("the blocks of request %s are not announced", request.request_id)
            self.figures.count("failures", label="event")

    def _describe(self, request: "Request", block: int) -> _Note:
        n = self.grid.block_tokens
        lora = request.lora_request
        return _Note(
            tokens=list(request.all_token_ids[block * n : (block + 1) * n]),
            lora=None if lora is None else (lora.lora_int_id, lora.lora_name),
            session=request.session_id,
            key=request.block_hashes[(block + 1) * self.grid.stride - 1],
            parts={
                size: self._part(request, block, size)
                for size in {group.block_tokens for group in self.groups}
            },
        )

    def _part(self, request: "Request", block: int, size: int) -> _Part:
        n, keys = self.grid.block_tokens, request.block_hashes
        hashes_each = size * self.grid.stride // n  # of each of the group's blocks
        ends = range(block * n // size, (block + 1) * n // size)
        first = ends[0] * hashes_each
        return _Part(
            parent=keys[first - 1] if first else None,
            hashes=[keys[(end + 1) * hashes_each - 1] for end in ends],
            extra_keys=[
                versions.event_extra_keys(request, end * size, (end + 1) * size) for end in ends
            ],
        )

    def take(self, pool: "BlockPool | None") -> "list[KVCacheEvent]":
        """Events since the last call.

        When vLLM empties its own prefix cache, its event clears a worker's blocks in every medium.
        So all blocks of this cache are announced anew. They are removed first, for routers that
        keep the media apart and don't clear them.
        """
        found = None if pool is None else versions.prefix_cache_of(pool)
        anew = self._emptied is not None and found is not self._emptied
        self._emptied = found
        return [event for below in self._media for event in self._take(below, anew)]

    def _take(self, below: bool, anew: bool) -> "Iterator[KVCacheEvent]":
        changes = self.cache.changes(below=below, anew=anew)
        gone = [_read(removed.note) for removed in changes.removed if removed.note]
        gone = [note for note in gone if self._changes(note, below, -1)]
        if gone:
            for group in self.groups:
                hashes = [key for note in gone for key in note.parts[group.block_tokens].hashes]
                yield versions.block_removed(hashes, group.index, below)
        for span in changes.stored:
            for notes in self._pieces(span, below):
                yield from (self._stored(notes, group, below) for group in self.groups)

    def _pieces(self, span: Span, below: bool) -> Iterable[list[_Note]]:
        """The blocks of a span in pieces that one event can hold."""
        for known, notes in groupby(span.notes, key=bool):
            if not known:
                self.figures.count("failures", label="event")
                continue
            read = ((note, self._changes(note, below, 1)) for note in map(_read, notes))
            pieces = groupby(read, key=lambda it: (it[0].session, it[1]))
            yield from ([note for note, _ in piece] for (_, new), piece in pieces if new)

    def _changes(self, note: _Note, below: bool, by: int) -> bool:
        """Counts a block's announcements. Returns whether the first begins or the last ends."""
        announced = self._announced[below]
        if by < 0 and note.key not in announced:
            return False  # it was announced before it could be described
        announced[note.key] += by
        left = announced[note.key]
        if not left:
            del announced[note.key]
        return left == max(by, 0)

    def _stored(self, notes: Sequence[_Note], group: EventGroup, below: bool) -> "KVCacheEvent":
        parts = [note.parts[group.block_tokens] for note in notes]
        return versions.block_stored(
            hashes=[key for part in parts for key in part.hashes],
            parent=parts[0].parent,
            tokens=[token for note in notes for token in note.tokens],
            block_tokens=group.block_tokens,
            lora=notes[0].lora,
            session=notes[0].session,
            extra_keys=[keys for part in parts for keys in part.extra_keys],
            group=group.index,
            kind=group.kind,
            below=below,
        )


def _read(note: bytes) -> _Note:
    """Reads a note that this process has written."""
    read: _Note = pickle.loads(note)
    return read
