"""The function that every simulated byte must equal.

A prefix has one 64-bit digest. A token's K/V bytes in a layer and a recurrent state are both that
digest expanded under the layer's key, and the first word of every expansion gives the digest back:
a state read from memory tells which tokens made it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

VOCABULARY = 500

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)


def _mix_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def key_of(*parts: object) -> int:
    """A 64-bit key of anything printable: a layer, a rank, what a request's bytes depend on."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def start(identity: object) -> int:
    """The digest before the first token of a request with this identity (salt, adapter)."""
    return key_of("start", identity)


def advance(digest: int, token: int) -> int:
    """The recurrence: the digest after one more token."""
    return _mix(digest + (token + 1) * _GOLDEN)


def next_token(digest: int) -> int:
    """The token that follows a prefix."""
    return _mix(digest ^ _SECOND) % VOCABULARY


def expand(digests: Sequence[int] | npt.NDArray[np.uint64], key: int, size: int) -> Bytes:
    """`size` bytes for each digest, as an array [len(digests), size]."""
    column = np.asarray(digests, dtype=np.uint64)[:, None]
    lanes = np.arange(-(-size // 8), dtype=np.uint64)[None, :] * np.uint64(_GOLDEN)
    words = _mix_words(column + lanes) ^ np.uint64(key)
    words[:, 0] = column[:, 0] ^ np.uint64(key)
    return words.astype("<u8").view(np.uint8)[:, :size]


def digest_of(state: Bytes, key: int) -> int:
    """The digest that an expansion of at least eight bytes carries."""
    return int(state[:8].view("<u8")[0]) ^ key


class Image(NamedTuple):
    """An image in a prompt: its tokens are the same whatever it shows."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True)
class Origin:
    """Everything that a request's bytes depend on beyond its tokens."""

    identity: object = None
    images: tuple[Image, ...] = ()


class Prefix:
    """A growing token sequence with the digest after each of its tokens."""

    def __init__(self, origin: Origin, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._digests: list[int] = [start(origin.identity)]
        self._shown = {
            image.offset + i: key_of("image", image.name, i)
            for image in origin.images
            for i in range(image.length)
        }
        for token in tokens:
            self.append(token)

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        seen = self._shown.get(len(self.tokens), token)
        self.tokens.append(token)
        self._digests.append(advance(self._digests[-1], seen))

    def copy(self) -> Prefix:
        twin = Prefix(Origin())
        twin.tokens, twin._digests, twin._shown = self.tokens[:], self._digests[:], self._shown
        return twin

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        del self._digests[length + 1 :]

    def after(self, count: int) -> int:
        """The digest after the first `count` tokens."""
        return self._digests[count]

    def of_states(self, first: int, last: int, tokens: int) -> npt.NDArray[np.uint64]:
        """The digests that states first..last-1 of so many tokens each are written with."""
        return self.of_tokens(first * tokens, last * tokens)[tokens - 1 :: tokens]

    def of_tokens(self, first: int, last: int) -> npt.NDArray[np.uint64]:
        """The digests that tokens first..last-1 are written with: each includes its own token."""
        return np.array(self._digests[first + 1 : last + 1], dtype=np.uint64)


def continuation(origin: Origin, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that must be generated after a prompt."""
    prefix = Prefix(origin, prompt)
    for _ in range(count):
        prefix.append(next_token(prefix.after(len(prefix))))
    return prefix.tokens[len(prompt) :]
