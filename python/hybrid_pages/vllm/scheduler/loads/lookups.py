"""Looks prompts up: after how many tokens can each be resumed, anywhere and from the host alone?

A prompt can be resumed at a boundary, or inside a block where a tail ends. The cache tells how many
tokens its tails have behind which boundary; those that are tokens of this prompt have its keys.
"""

from dataclasses import dataclass

from hybrid_pages import Cache
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tails import can_have_tails
from hybrid_pages.vllm.scheduler.requests.tracked import Place, Tracked


@dataclass(slots=True)
class PromptDepth:
    """How deep a prompt can be resumed. All numbers are tokens."""

    anywhere: Place
    """The deepest joint hit of all tiers."""
    host: Place
    """The deepest joint hit of the host alone, which can be loaded now."""
    paged: int
    """Where attention pages end, with or without a state to resume from."""
    missing: str | None
    """Why the joint hit ends before the pages, if it does."""
    asked: int
    """How deep the answers to questions that tiers have sent to their stores may lead; 0 if there
    are none. Then a later lookup may find more."""
    coming: int
    """How deep it can be resumed when all that is being stored has been."""


class Lookups:
    """Looks prompts up in the cache.

    cache: has the entries. keys: makes the keys of prefixes.
    """

    def __init__(self, cache: Cache, keys: Keys) -> None:
        self.cache, self.keys, self.grid = cache, keys, keys.grid
        self.inside = False
        """Whether requests may resume inside blocks. If not, nobody is asked for tails."""

    def look_up(self, tracked: Tracked, local: int, most: int) -> PromptDepth:
        """How deep a prompt can be resumed, after ``most`` tokens at most.

        local: tokens that vLLM has: a tail that is no deeper is of no use.
        """
        n, keys = self.grid.block_tokens, self.keys.of(tracked)
        hit = self.cache.lookup(tracked.run.namespace, keys, limit=most // n)
        found = PromptDepth(
            Place(hit.blocks * n, hit.blocks),
            Place(hit.host * n, hit.host),
            hit.pages * n,
            hit.missing,
            most // n * n if hit.asking else 0,
            hit.coming * n,
        )
        if self.inside and can_have_tails(tracked.request):
            self._look_inside(tracked, found, max(hit.host, local // n), most)
        if found.paged <= found.anywhere.tokens:
            found.missing = None
        return found

    def _look_inside(self, tracked: Tracked, found: PromptDepth, first: int, most: int) -> None:
        """Looks for deeper places inside blocks, behind the boundary ``first`` and later ones."""
        lengths, asking = self.cache.tail_lengths(tracked.run.namespace, tracked.keys, first=first)
        for blocks, tokens in reversed(lengths):
            places = self._places(tracked, blocks, tokens, most)
            asking |= self._take_deepest(tracked, blocks, places, found)
            if found.host.tail is not None:
                break  # whatever else there is is less deep
        if asking:
            found.asked = most

    def _places(self, tracked: Tracked, blocks: int, lengths: list[int], most: int) -> list[Place]:
        """The places behind a boundary where tails of some lengths would end, if they were of this
        prompt."""
        n = self.grid.block_tokens
        start = blocks * n
        fitting = [tokens for tokens in lengths if tokens < n and start + tokens <= most]
        named = self.keys.tails(tracked, blocks, fitting)
        return [
            Place(start + tokens, blocks, key) for tokens, key in zip(fitting, named, strict=True)
        ]

    def _take_deepest(
        self, tracked: Tracked, blocks: int, places: list[Place], found: PromptDepth
    ) -> bool:
        """Looks up the places behind a boundary that the cache may have, the deepest first. Returns
        whether a tier has sent a question to its store."""
        namespace = tracked.run.namespace
        tails = [place.tail for place in places if place.tail is not None]
        if not tails:
            return False
        there, asking = self.cache.has_tails(namespace, blocks, tails)
        for place, has in zip(reversed(places), reversed(there), strict=True):
            if not has:
                continue
            hit = self.cache.lookup(namespace, tracked.keys, limit=blocks, tail=place.tail)
            asking |= hit.asking
            if hit.coming == place.blocks:
                found.coming = max(found.coming, place.tokens)
            if hit.pages == place.blocks and place.tokens > found.paged:
                found.paged, found.missing = place.tokens, hit.missing
            if hit.blocks == place.blocks and place.tokens > found.anywhere.tokens:
                found.anywhere = place
            if hit.host == place.blocks:
                found.host = place
                break
        return asking
