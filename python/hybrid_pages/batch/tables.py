"""Block tables: which blocks of shared storage hold the tokens of each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from hybrid_pages._core import BudgetError, InvalidArgumentError
from hybrid_pages.batch.checks import at_least_one, per_row


class BlockPool:
    """Counts the references of rows to each of a fixed number of blocks. Not thread-safe.

    A block is free when no row refers to it.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = at_least_one("blocks", blocks)
        self.block_tokens = at_least_one("block_tokens", block_tokens)
        self._references = [0] * self.blocks
        self._free = list(range(self.blocks - 1, -1, -1))

    @property
    def free_blocks(self) -> int:
        """How many blocks no row refers to."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many times tables refer to a block."""
        return self._references[block]

    def take(self, count: int) -> list[int]:
        """Take free blocks, each with one reference; BudgetError, taking none, if too few."""
        if count > len(self._free):
            raise BudgetError(
                f"expected {count} free blocks of {self.block_tokens} tokens, found "
                f"{len(self._free)} of {self.blocks}; release rows or make the pool larger"
            )
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block. The blocks must be in use."""
        for block in blocks:
            assert self._references[block] > 0
            self._references[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Remove a reference from each block."""
        for block in blocks:
            assert self._references[block] > 0
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)


class BlockTable:
    """The blocks of each row, in order, and the number of its tokens. New rows are empty.

    `select` and `join` make tables that share blocks: no bytes move. A shared block is never
    written: `append` returns what to copy first. Blocks return to the pool on `release` or
    when the table is dropped.
    """

    def __init__(self, pool: BlockPool, size: int = 1) -> None:
        self.pool = pool
        self._rows: list[list[int]] = [[] for _ in range(at_least_one("size", size))]
        self._lengths = [0] * size

    def __del__(self) -> None:
        if hasattr(self, "_rows"):
            self.release()

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def rows(self) -> list[list[int]]:
        """The blocks of each row."""
        return [list(blocks) for blocks in self._rows]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each row."""
        return list(self._lengths)

    def select(self, rows: Sequence[int]) -> BlockTable:
        """A new table with some of the rows. This table keeps them, too."""
        return self._sharing([self._rows[i] for i in rows], [self._lengths[i] for i in rows])

    def join(self, others: Sequence[BlockTable]) -> BlockTable:
        """A new table with these rows and those of `others`. All are of one pool."""
        tables = [self, *others]
        if any(table.pool is not self.pool for table in tables):
            raise InvalidArgumentError("expected tables of one pool, found several pools")
        return self._sharing(
            [blocks for table in tables for blocks in table._rows],
            [length for table in tables for length in table._lengths],
        )

    def append(self, tokens: Iterable[int]) -> list[tuple[int, int]]:
        """Make room for new tokens. tokens: how many each row gets.

        Returns the (source, target) blocks whose content must be copied before anything is
        written: shared blocks at the end of a row that are partly filled. Raises BudgetError, with
        nothing changed, if the pool has too few free blocks.
        """
        counts = per_row("tokens", tokens, self.size)
        width = self.pool.block_tokens
        lost: Counter[int] = Counter()
        copied, added = [], []
        for row, (blocks, length, count) in enumerate(
            zip(self._rows, self._lengths, counts, strict=True)
        ):
            if count and length % width:
                last = blocks[-1]
                # The last one that refers to a block may write it.
                if self.pool.references(last) - lost[last] > 1:
                    lost[last] += 1
                    copied.append(row)
            added.append(-(-(length + count) // width) - len(blocks))
        fresh = self.pool.take(len(copied) + sum(added))
        copies = []
        for row in copied:
            source, target = self._rows[row][-1], fresh.pop()
            self._rows[row][-1] = target
            self.pool.drop([source])
            copies.append((source, target))
        for blocks, count in zip(self._rows, added, strict=True):
            blocks.extend(fresh.pop() for _ in range(count))
        self._lengths = [n + more for n, more in zip(self._lengths, counts, strict=True)]
        return copies

    def truncate(self, lengths: Iterable[int]) -> None:
        """Keep the first lengths[i] tokens of row i, and give back the blocks behind them."""
        kept = per_row("lengths", lengths, self.size)
        if any(n > length for n, length in zip(kept, self._lengths, strict=True)):
            raise InvalidArgumentError(f"expected at most {self._lengths} tokens, found {kept}")
        for blocks, length in zip(self._rows, kept, strict=True):
            needed = -(-length // self.pool.block_tokens)
            self.pool.drop(blocks[needed:])
            del blocks[needed:]
        self._lengths = kept

    def indices(self, positions: torch.Tensor) -> torch.Tensor:
        """The places of tokens in storage, [size, n] of int64, counted in tokens.

        positions: [size, n], the places in each row, less than its length. Negative ones give 0.
        """
        table = self.block_table(positions.device).clamp(min=0)
        width = self.pool.block_tokens
        place = positions.clamp(min=0)
        indices = table.gather(1, place // width) * width + place % width
        return indices.masked_fill(positions < 0, 0)

    def block_table(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The table for attention kernels, [size, blocks] of int64, -1 behind a row's end."""
        longest = max(1, *map(len, self._rows)) if self._rows else 1
        padded = [blocks + [-1] * (longest - len(blocks)) for blocks in self._rows]
        return torch.tensor(padded, dtype=torch.int64, device=device)

    def release(self) -> None:
        """Give back all blocks. May be called twice."""
        rows, self._rows = self._rows, []
        self._lengths = []
        for blocks in rows:
            self.pool.drop(blocks)

    def _sharing(self, rows: Sequence[list[int]], lengths: Sequence[int]) -> BlockTable:
        made = BlockTable(self.pool, len(rows))
        made._rows = [list(blocks) for blocks in rows]
        made._lengths = list(lengths)
        for blocks in rows:
            self.pool.hold(blocks)
        return made
