"""Changes of the announced blocks of a cache, for a follower such as a router."""

from typing import final

@final
class Removed:
    """A block that was announced and is not announced any more."""

    @property
    def namespace(self) -> int:
        """The namespace of the block, which may be unknown to the cache by now."""

    @property
    def block_index(self) -> int: ...
    @property
    def key(self) -> bytes:
        """The prefix key at the end of the block."""

    @property
    def note(self) -> bytes:
        """The note that :meth:`Cache.note` was given for the block; empty if there is none."""

@final
class Span:
    """Consecutive blocks of one prefix that are announced now."""

    @property
    def namespace(self) -> int: ...
    @property
    def block_index(self) -> int:
        """The index of the first block. The block before it was announced earlier."""

    @property
    def keys(self) -> list[bytes]:
        """The prefix key at the end of each block."""

    @property
    def notes(self) -> list[bytes]:
        """The note that :meth:`Cache.note` was given for each block; empty where there is none."""

@final
class Changes:
    """Changes for the follower: first the removals, then the spans."""

    @property
    def removed(self) -> list[Removed]:
        """Removed blocks, deep ones first."""

    @property
    def stored(self) -> list[Span]:
        """Announced spans. A span comes after the one that it continues."""
