"""Prefix keys: a chained hash for every full block of a sequence of token ids."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


class Prefix:
    """A growing sequence of token ids and the keys of its full blocks.

    A key is BLAKE2b of the key before it and the block's ids, as 8-byte little-endian integers.
    """

    def __init__(self, token_ids: Any, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.keys: list[bytes] = []
        self.extend(token_ids)

    def extend(self, token_ids: Any) -> None:
        """Adds the keys of the blocks that the whole sequence has and this one lacks."""
        ids = torch.as_tensor(token_ids, dtype=torch.int64).reshape(-1)
        first, last = len(self.keys), ids.numel() // self.block_tokens
        raw = ids[first * self.block_tokens : last * self.block_tokens].cpu().numpy()
        for block in raw.astype("<i8").reshape(-1, self.block_tokens):
            before = self.keys[-1] if self.keys else b""
            self.keys.append(hashlib.blake2b(before + block.tobytes(), digest_size=32).digest())
