"""Changes of a cache that its follower is told of."""

from typing import final

@final
class Removed:
    """A block that the follower was told of and that is not announced any more."""

    @property
    def namespace(self) -> int:
        """The block's namespace, which the cache may have forgotten by now."""

    @property
    def block_index(self) -> int: ...
    @property
    def key(self) -> bytes:
        """The prefix key at its end."""

    @property
    def note(self) -> bytes:
        """The note that :meth:`Cache.note` was given for the block; empty if it was given none."""

@final
class Span:
    """Consecutive blocks of one prefix that are announced from now on."""

    @property
    def namespace(self) -> int: ...
    @property
    def block_index(self) -> int:
        """Index of the first. The block before it was told earlier."""

    @property
    def keys(self) -> list[bytes]:
        """The prefix key at the end of each."""

    @property
    def notes(self) -> list[bytes]:
        """The notes that :meth:`Cache.note` was given, one a block; empty where there was none."""

@final
class Changes:
    """Changes since the follower asked last: the removals come first, then the spans."""

    @property
    def removed(self) -> list[Removed]:
        """Deep blocks first."""

    @property
    def stored(self) -> list[Span]:
        """A span comes after the one that it goes on from."""
