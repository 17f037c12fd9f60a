"""Keys and block tables of an engine's requests, as the vLLM connector reads them."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar, final

from hybrid_pages._stubs.geometry import Geometry

_Block = TypeVar("_Block")

_StoreEntry: TypeAlias = (
    tuple[int, Sequence[int], Sequence[int]]
    | tuple[int, Sequence[int], Sequence[int | None], int | None]
)

def tail_key(before: bytes, digest: bytes, tokens: int) -> bytes:
    """The key of a tail: of `tokens` tokens behind a prefix that fill no block. It has 31 bytes.

    before: the key of the prefix's last block; empty at the start of prompts. digest: at least 19
    bytes of a hash of everything that the tail's bytes depend on: the key before, the tokens, and
    what an engine hashes beside them.
    """

@final
class PrefixKeys:
    """The keys of a growing prefix, one per block, each read once.

    Functions that take keys accept these, with a `stride` of 1.
    """

    def __new__(cls, stride: int = 1) -> PrefixKeys:
        """Make an empty list. stride: how many hashes a block has; the last one is its key."""

    def __len__(self, /) -> int: ...
    def __getitem__(self, index: int, /) -> bytes:
        """The key of a block, counted from 0. Raises IndexError after the last one."""

    def read(self, hashes: list[bytes]) -> None:
        """Take over the keys of a prefix. If the last known key still has its place, only later
        ones are read, since a chained hash covers all before it; otherwise all are read anew."""

    def append(self, hash: bytes) -> None:
        """Add the key of one more block."""

    def clear(self) -> None:
        """Forget all keys."""

@final
class StoreEntries:
    """The entries that a store copies: class, slots, engine blocks and tokens of each. Pickles.

    tokens: how many tokens a page has, if it has not all of them. Then an engine block behind them
    may be None; so is one with the id 0. state_copies: the states that are copied within the
    engine's memory before the entries are read, since the next step overwrites them. Of each: its
    group, and the engine blocks that it is copied from and to.

    Raises InvalidArgumentError for a slot or an engine block out of range.
    """

    def __new__(
        cls, entries: Sequence[_StoreEntry], state_copies: Sequence[tuple[int, int, int]] = ()
    ) -> StoreEntries: ...
    def __len__(self, /) -> int: ...
    def __iter__(self, /) -> Iterator[tuple[int, list[int], list[int | None], int | None]]: ...
    def __getnewargs__(
        self, /
    ) -> tuple[
        list[tuple[int, list[int], list[int | None], int | None]], list[tuple[int, int, int]]
    ]: ...
    @property
    def state_copies(self) -> list[tuple[int, int, int]]: ...
    def sources(self, blocks: list[_Block]) -> list[_Block]:
        """The items of a list that belong to the entries' engine blocks, in order. An item's index
        is the id of its block. Blocks that are None have no item.

        Raises IndexError if the list is too short.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class BlockTables:
    """The block tables of all requests, as vLLM's cache managers keep them.

    Calling it runs no Python, so `Stores` reads them faster than through vLLM's own method.
    """

    def __new__(cls, groups: Sequence[dict[str, list[_Block]]]) -> BlockTables:
        """groups: for each group, the table of each request by its id (`req_to_blocks` of a
        ``SingleTypeKVCacheManager``), read at each call. Raises TypeError if one is no dict."""

    def __call__(self, request_id: str, /) -> list[Sequence[object]]:
        """A request's block table in each group; empty where it has none."""

@final
class TableColumns:
    """The places in an engine's block tables that hold the engine blocks of each class's entries.

    A block table names a request's engine blocks in order, each by its id, or by an object whose
    attribute `block_id` is the id. An id of 0 is no engine block.
    """

    def __new__(
        cls, geometry: Geometry, groups: Sequence[tuple[int, int, int, int, int | None]]
    ) -> TableColumns:
        """groups: for each group of the geometry, the index of its block table, the tokens of an
        engine block, how many engine blocks hold the tokens of a block, how many of these, counted
        from the last, an entry has, and the tokens of its window, or None.

        Raises InvalidArgumentError if the geometry has another number of groups, or an entry has no
        engine blocks or more than a block has.
        """

    def filled(
        self, tables: Sequence[Sequence[object]], first: int, end: int
    ) -> list[tuple[int, int]]:
        """Class and block of the pages of blocks [first, end) that have all their engine blocks."""
