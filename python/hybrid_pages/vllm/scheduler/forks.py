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


_Ending = tuple[str | None, tuple[int, ...]]
"""A salt, and the last tokens of prompts."""


@dataclass(slots=True)
class _Sightings:
    """How often later prompts have left prompts before such an ending, and gone on behind it."""

    left: int = 0
    continued: int = 0


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
    drops: bool = False
    """Whether most prompts with this ending were left there, and not continued."""
    continues: bool = False
    """Whether it continues an earlier prompt, all of which it begins with."""


NOWHERE = Parting(0, 0)


class Forks:
    """Remembers recent prompts by their tokens. block_tokens: of a block."""

    def __init__(self, block_tokens: int, most_tokens: int = _MOST_TOKENS) -> None:
        self._n, self._most = block_tokens, most_tokens
        self._pieces: dict[_Place, list[_Piece]] = {}
        self._tokens = 0
        self._endings: dict[_Ending, _Sightings] = {}
        """What became of prompts with these endings."""

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
        fork, continues = self._parts(request, places[depth], depth * n)
        for at in range(depth, len(places)):
            self._remember(places[at], self._piece(request, at * n))
        self._forget_oldest()
        ending = self._ending(request, salt)
        if ending is None:
            return Parting(fork, 0, continues=continues)
        seen = self._endings[ending]
        drops = seen.left > seen.continued
        return Parting(fork, last - len(ending[1]), drops, continues)

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

    def _parts(self, request: "Request", place: _Place, start: int) -> tuple[int, bool]:
        """Where a prompt leaves the earlier ones that go on from a boundary; 0 for nowhere. Also
        whether it continues one."""
        last = request.num_prompt_tokens
        tokens = array("q", request.all_token_ids[start : min(last, start + self._n)])
        deepest, continues = 0, False
        for piece in self._pieces.get(place, ()):
            shared = _shared(piece.tokens, tokens)
            left, ends = len(piece.tokens) - shared, start + shared == last
            goes_on = not ends and (shared or start)
            if goes_on and piece.is_end and not left:
                continues = True
                self._continued(place[1], tuple(piece.tokens[-MOST_LEFT:]))
            elif goes_on and piece.is_end and left <= MOST_LEFT:
                self._note(place[1], tuple(piece.tokens[shared:]))
            if ends or (left and shared < self._n):
                deepest = max(deepest, shared)
        # The last token is computed in any case.
        return (min(start + deepest, last - 1) if deepest else 0), continues

    def _note(self, salt: str | None, ending: tuple[int, ...]) -> None:
        seen = self._endings.pop((salt, ending), None) or _Sightings()
        seen.left += 1
        self._endings[salt, ending] = seen
        if len(self._endings) > _MOST_ENDINGS:
            del self._endings[next(iter(self._endings))]

    def _continued(self, salt: str | None, tokens: tuple[int, ...]) -> None:
        """Notes that a prompt which ended with these tokens was continued."""
        for (of, ending), seen in self._endings.items():
            if of == salt and tokens[-len(ending) :] == ending:
                seen.continued += 1

    def _ending(self, request: "Request", salt: str | None) -> _Ending | None:
        """The known ending of a prompt before which most prompts were left."""
        last = request.num_prompt_tokens
        tokens = tuple(request.all_token_ids[max(0, last - MOST_LEFT) : last])
        known = [
            (seen.left, len(ending), ending)
            for (of, ending), seen in self._endings.items()
            if seen.left >= _SIGHTINGS and of == salt and tokens[-len(ending) :] == ending
        ]
        return (salt, max(known)[2]) if known else None

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
