"""Chooses where a request gets checkpoints, and asks the engine to end steps there.

A state exists where a step ended, and at the last boundary of a prompt if the kernels export it
from inside a step. Otherwise vLLM ends a step at that boundary. It also ends one at one fork (see
:func:`hybrid_pages.vllm.versions.end_step_at`). Moving that fork from stop to stop ends a step at
every boundary that needs one. A step may also end inside a block, if it is known where the tokens
of a page lie.
"""

from hybrid_pages import Cache, Geometry
from hybrid_pages.adapter.admission import Admissions, last_boundary
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.settings import Settings
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.answers import Answers
from hybrid_pages.vllm.scheduler.forks import NOWHERE, Forks, Parting
from hybrid_pages.vllm.scheduler.requests.hints import read_hints
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tails import can_have_tails
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked
from hybrid_pages.vllm.versions import logger

_LEAST_GAIN = 16
"""The fewest tokens that a state inside a block has to save, for a step to be ended there."""


class Checkpoints:
    """Chooses boundaries for checkpoints, by the cache's policy, the settings and hints."""

    def __init__(
        self,
        geometry: Geometry,
        cache: Cache,
        keys: Keys,
        settings: Settings,
        figures: Figures,
    ) -> None:
        self.keys, self.grid, self.figures = keys, keys.grid, figures
        self._cache, self._has_evicted = cache, False
        self._admissions = Admissions(cache, self.grid.block_tokens)
        self.mode = settings.checkpoint_mode
        self.interval = -(-settings.checkpoint_interval // self.grid.block_tokens)
        self.answers = Answers()
        self.forks = Forks(self.grid.block_tokens)
        self._hints_ignored = False
        self.recurrent = any(item.kind == "recurrent" for item in geometry.classes)
        self.inside = False
        """Whether a step may end inside a block, to leave a state there."""
        self.takes_inside = False
        """Whether the engine hands over states inside blocks, which are stored."""

    # ---- a request

    def arrived(self, tracked: Tracked) -> None:
        """Chooses boundaries for a new request."""
        request, n = tracked.request, self.grid.block_tokens
        tokens = request.num_prompt_tokens
        last = last_boundary(tokens, n)
        if self.grid.drops_last_block:
            last = max(tokens // n - 1, 0)
        self._read_hints(tracked)
        admission = self._admissions.admit(
            tracked.run.namespace, self.keys.of(tracked), tokens, tracked.run.hints
        )
        keys, namespace = self.keys.of(tracked), tracked.run.namespace
        tracked.answer = n * self.answers.depth(namespace, keys, admission.fork)
        if not self._steers(tracked):
            return
        stops = set(range(self.interval, last + 1, self.interval)) if self.interval else set()
        inside = self.inside and can_have_tails(request)
        full, parting = inside and self._is_full(), NOWHERE
        if inside and self.mode == "adaptive":
            parting = self.forks.arrived(request, namespace, keys)
        # Once the host is full, a turn of a conversation gets no states but that from which the
        # next one will go on, and those at forks.
        others = not (parting.continues and full)
        tracked.drops = parting.drops
        if others and (
            self.grid.cuts_elsewhere or (self.grid.exports_states and self.grid.keeps_inside)
        ):
            stops.add(last)  # the engine itself leaves or exports a state at a finer boundary
        stops |= {position // n for position in tracked.hints.checkpoint_at}
        if self.mode == "adaptive":
            if admission.fork is not None:
                stops.add(admission.fork)
            if others:
                tracked.run.want([*admission.boundaries, last])
        tracked.steer(stops - {0})
        if inside:
            self._stop_inside(tracked, parting, full=full)
        if self.takes_inside and others:
            kept = {self.grid.kept_inside(tokens)} - {0}
            tracked.run.want_tails(kept)
            tracked.prompt_ends |= kept

    @property
    def keeps_tails(self) -> bool:
        """Whether the ends of answers stay in vLLM's pool, since the host can't hold all."""
        return self.inside and self._is_full()

    def _is_full(self) -> bool:
        """Whether a checkpoint has had to leave the host since the start."""
        if not self._has_evicted:
            self._has_evicted = self._cache.stats()["evicted_checkpoints"] > 0
        return self._has_evicted

    def _stop_inside(self, tracked: Tracked, parting: Parting, *, full: bool) -> None:
        """Chooses where a new request gets a state inside a block: where the next one will leave
        it, or else at the end of its prompt, as long as the host is not full; where it leaves an
        earlier one; where a hint says so."""
        request, end = tracked.request, parting.end
        tracked.fork, tracked.left_at = parting.fork, end
        if end:
            tracked.run.want_tails([end])
        elif not full:
            tracked.run.want_tails([request.num_prompt_tokens])
            tracked.prompt_ends.add(request.num_prompt_tokens)
        tracked.shared.update(tracked.hints.checkpoint_at)
        self._steer_inside(tracked, {end, *tracked.hints.checkpoint_at})
        if not end % self.grid.block_tokens:
            tracked.steer({end // self.grid.block_tokens} - {0})

    def _steer_inside(self, tracked: Tracked, ends: set[int]) -> None:
        """Asks for steps that end after so many tokens, as far as these lie inside blocks.

        Kernels export the state of the last boundary from the step that ends with the prompt. If
        another step ends behind that boundary, one has to end there, too.
        """
        n, tokens = self.grid.block_tokens, tracked.request.num_prompt_tokens
        inside = {end for end in ends if end % n and end < tokens}
        tracked.steer_inside(inside)
        last = last_boundary(tokens, n)
        if self.grid.exports_states and any(end > last * n for end in inside):
            tracked.steer({last} - {0})

    def _read_hints(self, tracked: Tracked) -> None:
        request = tracked.request
        if not request.kv_transfer_params:
            return
        hints = read_hints(
            request.kv_transfer_params, request.num_prompt_tokens, request.cache_salt
        )
        tracked.hints = hints
        tracked.run.hints, tracked.run.stores = hints.for_policy(request.cache_salt), hints.store
        if not hints.errors:
            return
        self.figures.count("refused_hints", len(hints.errors))
        if not self._hints_ignored:
            self._hints_ignored = True
            logger.warning(
                "a hint of request %s is ignored: %s (said once; counted as refused_hints)",
                request.request_id,
                hints.errors[0],
            )

    def _steers(self, tracked: Tracked) -> bool:
        """Whether the request gets any checkpoints."""
        return self.recurrent and self.mode != "none" and tracked.hints.store

    def looked_up(self, tracked: Tracked) -> None:
        """Takes the forks that a lookup found, and vLLM's own, and sets the first stop."""
        lookup, request, n = tracked.lookup, tracked.request, self.grid.block_tokens
        if lookup is None:  # the request reads no cache
            self._steer(tracked, 0)
            return
        resumed = max(lookup.hit, lookup.restorable)
        fork = tracked.engine_fork = versions.fork_of(request)
        if not self._steers(tracked):
            self._steer(tracked, resumed)
            return
        forks: tuple[int, ...] = ()
        if self.mode == "adaptive":
            forks = lookup.paged // n * n, fork  # pages may end in a tail
        elif tracked.stops:
            forks = (fork,)
        tracked.steer({tokens // n for tokens in forks if tokens > resumed and tokens % n == 0})
        if tracked.fork % n and tracked.fork >= resumed + _LEAST_GAIN:
            tracked.shared.add(tracked.fork)
            self._steer_inside(tracked, {tracked.fork})
        self._steer(tracked, resumed)

    def stepped(self, tracked: Tracked, end: int) -> None:
        """Sets the next stop of a request, after a step to ``end`` tokens was planned."""
        block, rest = divmod(end, self.grid.block_tokens)
        if end in tracked.ends or (not rest and block in tracked.stops):
            self.figures.count("steered_steps")
        self._steer(tracked, end)

    def _steer(self, tracked: Tracked, done: int) -> None:
        if done >= tracked.request.num_tokens:
            return  # decoding: every stop has passed
        n = self.grid.block_tokens
        # A preempted request has more tokens: it computes its answer like a prompt.
        if not self.grid.drafts and (end := self.grid.runs_on(done, tracked.request.num_tokens)):
            tracked.end_step(end)
        ours = {*(stop * n for stop in tracked.stops), *tracked.ends}
        ahead = [tokens for tokens in (tracked.engine_fork, *ours) if tokens > done]
        if ahead:
            stop = min(ahead)
            exact = stop in ours and not self.grid.drafts
            versions.end_step_at(tracked.request, stop, inside=exact)

    def forget(self) -> None:
        """Forgets earlier requests, since everything computed so far is outdated."""
        self.answers.forget()
        self.forks.forget()

    def finished(self, tracked: Tracked) -> None:
        """Announces the end of a stored request to the policy."""
        if not tracked.hints.store:
            return
        request, run, keys = tracked.request, tracked.run, self.keys.of(tracked)
        self._admissions.finish(
            run.namespace, keys, request.num_prompt_tokens, request.num_output_tokens
        )
        if not (tracked.stale or versions.failed(request)):
            self.answers.ended(run.namespace, keys, run.passed_over, run.wanted)
