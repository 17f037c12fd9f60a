"""Runs one request with the cache: resume, prefill, store while decoding, finish."""

from typing import Any, Generic

from hybrid_pages._core import HybridPagesError
from hybrid_pages.adapter.admission import Admissions, deserving, last_boundary
from hybrid_pages.adapter.entries import Entries
from hybrid_pages.adapter.keys import Prefix
from hybrid_pages.adapter.runtime import Runtime, States


class Session(Generic[States]):
    """One request, from its prompt to its last token, computed by a runtime.

    An integration calls :meth:`resume`, :meth:`prefill`, then :meth:`passed` after each
    step of decoding, and :meth:`finish`. If a store fails, the request goes on without it.

    Args:
        entries: stores and loads entries.
        runtime: computes tokens with a model and a fresh cache.
        namespace: held by the caller until the end.
        token_ids: of the prompt, as :class:`Prefix` takes them.
        floor, reach: tokens. Boundaries up to ``floor`` or beyond ``reach`` are neither resumed
            from nor stored: their bytes depend on more than their tokens.
    """

    def __init__(
        self,
        entries: Entries,
        runtime: Runtime[States],
        namespace: int,
        token_ids: Any,
        *,
        floor: int = 0,
        reach: int | None = None,
    ) -> None:
        geometry = entries.geometry
        self._entries, self._runtime, self._namespace = entries, runtime, namespace
        self._floor, self._reach = floor, reach
        self._size = geometry.block_tokens
        self._recurrent = any(item.kind == "recurrent" for item in geometry.classes)
        self._admissions = Admissions(entries.cache, self._size)
        self._prefix, self._tokens = Prefix(token_ids, self._size), len(token_ids)
        self._limit = last_boundary(self._tokens, self._size)
        # Boundaries that deserve a checkpoint.
        self._wanted: set[int] = set()
        # Blocks whose pages were given to the cache.
        self._offered = 0
        # Set once the model has changed: nothing more of this request may be stored.
        self._ended = False
        # The states at the last boundary that decoding passed.
        self._kept: States | None = None
        self._kept_at = 0

    def resume(self) -> int:
        """Announces the request, and restores the longest known prefix.

        Returns how many tokens were restored.
        """
        keys = self._prefix.keys
        self._wanted = deserving(self._admissions.admit(self._namespace, keys, self._tokens))
        with self._entries.reach(self._namespace, keys, limit=self._limit) as reach:
            hit = reach.blocks
            if hit * self._size <= self._floor:
                return 0
            if not (self._runtime.continues() or self._can_step(hit)):
                return 0
            self._offered = self._entries.load(reach, self._runtime.copy_in)
        if not self._offered:
            # The load failed and dropped the entries, which deserve a place as before.
            self._wanted.add(hit)
        return self._offered * self._size

    def prefill(self) -> None:
        """Computes up to the last boundary that deserves a checkpoint, and stores the checkpoints.

        The caller computes the rest of the prompt: all of it if the cache has seen no token yet.
        """
        done, continues = self._offered, self._runtime.continues()
        # With rotary scaling, keys depend on where a pass ends: no pass ends before `floor`.
        first = max(done, self._floor // self._size)
        stops = sorted(stop for stop in self._wanted if first < stop <= self._limit)
        if not continues:
            stops = [stop for stop in stops[-1:] if self._can_step(stop)]
        kept = self._runtime.kept_tokens()
        # Window layers keep so many whole blocks: a longer chunk would lose pages.
        longest = None if kept is None else kept // self._size
        if longest is not None and self._floor and not done:
            return
        for stop in stops:
            while done < stop:
                end = stop if longest is None else min(stop, done + longest)
                self._compute(done * self._size, end * self._size)
                done = end
                self._publish(end, with_states=end == stop)
        if done and not continues:
            self._compute(done * self._size, self._tokens - 1)

    def passed(self, token_ids: Any) -> None:
        """Follows a step of decoding.

        On a boundary the new pages are stored. The states are stored, too, if the boundary deserves
        a checkpoint, or else kept until the next boundary.

        Args:
            token_ids: all that the cache has seen: the prompt, and the output without its last
                token.
        """
        seen = len(token_ids)
        end = seen // self._size
        if self._ended or seen % self._size or end <= self._offered or self._is_past_reach(end):
            return
        if self._runtime.seen() != seen:
            return
        self._prefix.extend(token_ids)
        wanted = end in self._wanted
        self._publish(end, with_states=wanted)
        if not wanted and self._recurrent and self._offered == end:
            self._keep(end)

    def finish(self, token_ids: Any) -> None:
        """Stores the states at the last boundary of the output, and announces the request's end.

        token_ids: of the prompt and the whole output.
        """
        if self._kept is not None and self._kept_at == self._offered:
            self._offer(self._kept_at, self._kept, pages=False)
        self._prefix.extend(token_ids)
        output = len(token_ids) - self._tokens
        self._admissions.finish(self._namespace, self._prefix.keys, self._tokens, output)

    def _can_step(self, blocks: int) -> bool:
        """Whether few enough tokens follow a boundary to be computed one by one."""
        return self._tokens - blocks * self._size <= self._size

    def _compute(self, start: int, end: int) -> None:
        whole = not start or self._runtime.continues()
        step = end - start if whole else 1
        for token in range(start, end, step or 1):
            self._runtime.compute(token, token + step)

    def _publish(self, end: int, *, with_states: bool) -> None:
        """Stores the pages up to the boundary that the cache stands on, and maybe the states."""
        states = self._runtime.states() if with_states and self._recurrent else None
        if self._offer(end, states, pages=True):
            self._offered = end

    def _offer(self, end: int, states: States | None, *, pages: bool) -> bool:
        """Stores pages, states or both up to a boundary; whether that worked."""
        if self._ended or self._is_past_reach(end):
            return False
        runtime = self._runtime
        if runtime.changed():
            self._ended = True
            return False
        try:
            self._entries.store(
                self._namespace,
                self._prefix.keys[:end],
                lambda entries: runtime.copy_out(entries, states),
                first=self._offered,
                first_held=runtime.first_held if pages else None,
                states=states is not None,
            )
        except Exception as error:
            if not (isinstance(error, HybridPagesError) or runtime.is_out_of_memory(error)):
                raise
            self._entries.moved.failed_stores += 1
            return False
        return True

    def _is_past_reach(self, end: int) -> bool:
        """Whether the bytes up to a boundary depend on more than the tokens."""
        return self._reach is not None and end * self._size > self._reach

    def _keep(self, end: int) -> None:
        """Keeps the states at a boundary until the request ends or another boundary comes."""
        try:
            self._kept = self._runtime.keep(self._kept)
        except Exception as error:
            if not self._runtime.is_out_of_memory(error):
                raise
            self._kept = None
            self._entries.moved.failed_stores += 1
        self._kept_at = end
