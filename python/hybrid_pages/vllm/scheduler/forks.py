"""Learns where later prompts leave earlier ones inside a block.

The cache's policy knows the forks of prompts by the keys of whole blocks. Where two prompts part
inside a block only their tokens tell: the end of a short system prompt, a message that was edited,
or a prompt that comes again. This module remembers the tokens of recent prompts by the key of the
block before, and finds the fork of a new prompt as the policy does: the second visitor makes the
state that the third one gets.

A chat template that drops earlier reasoning leaves each prompt at the same few tokens before its
end. Once a distance was seen twice behind the same tokens, a prompt that ends with these tokens
gets its state there on its first visit.
"""

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hybrid_pages._core import PrefixKeys
from hybrid_pages.vllm.scheduler.requests.tails import can_have_tails

if TYPE_CHECKING:
    from vllm.v1.request import Request

MOST_LEFT = 32
"""The most tokens that a template may leave at the end of a prompt."""
_MOST_TOKENS = 1 << 20
"""How many tokens are remembered, at eight bytes each; the oldest are forgotten first."""
_MOST_PIECES = 8
"""How many continuations of a block are remembered."""
_MOST_ENDINGS = 256
"""How many endings are remembered."""
_SIGHTINGS = 2
"""How often prompts have to part before an ending, until the next prompt with it gets a stop."""

_Place = tuple[int, str | None, bytes | None]
"""A namespace, a salt, and the key of the block before; None at the start of prompts."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The tokens of a prompt behind a boundary: those of a block, or all to the prompt's end."""

    tokens: "array[int]"
    is_end: bool


class Parting(NamedTuple):
    """Where a new prompt deserves a state inside a block, in tokens; 0 for nowhere."""

    fork: int
    """Where it leaves an earlier prompt."""
    end: int
    """Where the next prompt will leave it, as far as is known."""


NOWHERE = Parting(0, 0)


class Forks:
    """Remembers recent prompts by their tokens. block_tokens: of a block."""

    def __init__(self, block_tokens: int, most_tokens: int = _MOST_TOKENS) -> None:
        self._n, self._most = block_tokens, most_tokens
        self._pieces: dict[_Place, list[_Piece]] = {}
        self._tokens = 0
        self._endings: dict[tuple[str | None, tuple[int, ...]], int] = {}
        """How often prompts parted before these tokens, by salt."""

    def arrived(self, request: "Request", namespace: int, keys: PrefixKeys) -> Parting:
        """Remembers a new prompt, and says where it deserves a state inside a block.

        Args:
            request: the request.
            namespace: of the request.
            keys: of the prompt's whole blocks.
        """
        if not can_have_tails(request):
            return NOWHERE
        salt, n, last = request.cache_salt or None, self._n, request.num_prompt_tokens
        before = (keys[block] for block in range(min(last // n, len(keys))))
        places = [(namespace, salt, None), *((namespace, salt, key) for key in before)]
        depth = next((at for at in range(len(places) - 1, -1, -1) if places[at] in self._pieces), 0)
        fork = self._parts(request, places[depth], depth * n)
        for at in range(depth, len(places)):
            self._remember(places[at], self._piece(request, at * n))
        self._forget_oldest()
        left = self._left(request, salt)
        return Parting(fork, last - left if left else 0)

    def forget(self) -> None:
        """Forgets all prompts, since everything computed so far is outdated."""
        self._pieces.clear()
        self._tokens = 0

    def _piece(self, request: "Request", start: int) -> _Piece:
        """The tokens of a prompt from a boundary on: to its end, if that is near."""
        last, end = request.num_prompt_tokens, start + self._n
        if last - end <= MOST_LEFT:
            end = last
        return _Piece(array("q", request.all_token_ids[start:end]), end == last)

    def _parts(self, request: "Request", place: _Place, start: int) -> int:
        """Where a prompt leaves the earlier ones that go on from a boundary; 0 for nowhere."""
        last = request.num_prompt_tokens
        tokens = array("q", request.all_token_ids[start : min(last, start + self._n)])
        deepest = 0
        for piece in self._pieces.get(place, ()):
            shared = _shared(piece.tokens, tokens)
            left, ends = len(piece.tokens) - shared, start + shared == last
            goes_on = not ends and (shared or start)
            if goes_on and piece.is_end and 0 < left <= MOST_LEFT:
                self._note(place[1], tuple(piece.tokens[shared:]))
            if ends or (left and shared < self._n):
                deepest = max(deepest, shared)
        # The last token is computed in any case.
        return min(start + deepest, last - 1) if deepest else 0

    def _note(self, salt: str | None, ending: tuple[int, ...]) -> None:
        seen = self._endings.pop((salt, ending), 0)
        self._endings[salt, ending] = seen + 1
        if len(self._endings) > _MOST_ENDINGS:
            del self._endings[next(iter(self._endings))]

    def _left(self, request: "Request", salt: str | None) -> int:
        """How many tokens at its end the next prompt will leave of a prompt; 0 if none is known."""
        last = request.num_prompt_tokens
        tokens = tuple(request.all_token_ids[max(0, last - MOST_LEFT) : last])
        known = [
            (seen, len(ending))
            for (of, ending), seen in self._endings.items()
            if seen >= _SIGHTINGS and of == salt and tokens[-len(ending) :] == ending
        ]
        return max(known)[1] if known else 0

    def _remember(self, place: _Place, piece: _Piece) -> None:
        if not piece.tokens:
            return
        pieces = self._pieces.pop(place, [])
        self._pieces[place] = pieces
        if piece in pieces:
            return
        pieces.append(piece)
        self._tokens += len(piece.tokens)
        if len(pieces) > _MOST_PIECES:
            self._tokens -= len(pieces.pop(0).tokens)

    def _forget_oldest(self) -> None:
        while self._tokens > self._most:
            pieces = self._pieces.pop(next(iter(self._pieces)))
            self._tokens -= sum(len(piece.tokens) for piece in pieces)


def _shared(one: "array[int]", other: "array[int]") -> int:
    """How many leading tokens two sequences share."""
    equal, most = 0, min(len(one), len(other))
    while equal < most:
        middle = (equal + most + 1) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            most = middle - 1
    return equal
