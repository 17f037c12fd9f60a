"""What a follower of a cache is told."""

from typing import final

@final
class Removed:
    """A block that the follower was told of and that is not announced any more."""

    @property
    def namespace(self) -> int:
        """Its namespace, which may be unknown by now."""

    @property
    def block_index(self) -> int: ...
    @property
    def key(self) -> bytes:
        """The prefix key at its end."""

    @property
    def note(self) -> bytes:
        """What :meth:`Cache.note` was given for it; empty if nothing was."""

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
        """What :meth:`Cache.note` was given for each; empty where nothing was."""

@final
class Changes:
    """What the follower is to be told: the removals, then the spans, in this order."""

    @property
    def removed(self) -> list[Removed]:
        """Deep blocks first."""

    @property
    def stored(self) -> list[Span]:
        """A span comes after the one that it goes on from."""
