"""The prompt cache of mlx-lm's server."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mlx_lm.models.cache import LRUPromptCache

from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.mlx.prompts import Prompts
from hybrid_pages.mlx.versions import OF_THE_USER, UnsupportedError

_log = logging.getLogger(__name__)


class RequestCache(list[Any]):
    """A prompt cache with the prompt of its request."""

    def __init__(self, cache: Sequence[Any], prompt: list[int]) -> None:
        super().__init__(cache)
        self.prompt = prompt


class PlannedCache(RequestCache):
    """A prompt cache that has seen the first ``seen`` tokens of its prompt.

    stops: after how many tokens it is to be stored. store: called at each of them to store it.
    """

    def __init__(
        self,
        cache: Sequence[Any],
        prompt: list[int],
        seen: int,
        stops: list[int],
        store: Callable[[int], None],
    ) -> None:
        super().__init__(cache, prompt)
        self.seen, self.stops, self.store = seen, stops, store


class ServerPromptCache:
    """The prompt cache that ``mlx_lm.server`` uses, for one model at a time.

    Where a store cannot be used, mlx-lm's own cache takes its place, within the same budget of
    bytes; the log says why. Methods do not raise: a failure is a miss, logged and counted in
    ``failures``. Prompts with images are not cached, and are counted there, too.

    refused: the error in the settings for the present model, or None.

    Args:
        tiers: settings of the store.
        block_tokens: tokens per block.
        sequences: how many prompts mlx-lm's own cache keeps.
    """

    def __init__(self, tiers: TierSettings, block_tokens: int, sequences: int) -> None:
        self._tiers, self._block_tokens, self._sequences = tiers, block_tokens, sequences
        self._prompts: Prompts | None = None
        self._plain = self._make_plain()
        # The prompt that was announced last, and its stops. The server fetches it next.
        self._plan: tuple[list[int], list[int]] = ([], [])
        self.failures: Counter[str] = Counter()
        self.refused: HybridPagesError | None = None

    # ---- the model

    def use(self, model: Any, why_not: str | None, *, quietly: bool = False) -> None:
        """Makes a store for a model.

        why_not: a reason to use mlx-lm's own cache instead. quietly: whether the caller reports
        errors in the settings, so that they are not logged here.
        """
        self.drop()
        try:
            if why_not is not None:
                place = "--disk-path" if self._tiers.disk_path else "mlx-server"
                said = f"{place}: expected plain caches, found {why_not}: leave one out"
                if self._tiers.disk_path:
                    raise SettingsError(said)
                raise UnsupportedError(said)
            self._prompts = Prompts(model, self._tiers, self._block_tokens, self.failures)
        except Exception as error:  # code of the model ran: any failure means mlx-lm's own cache
            if isinstance(error, OF_THE_USER):
                self.refused = error
            if self.refused is None or not quietly:
                trace = None if isinstance(error, HybridPagesError) else error
                _log.warning("prompts are cached by mlx-lm's own cache: %s", error, exc_info=trace)

    def drop(self) -> None:
        """Drops the model and everything that is stored for it."""
        if self._prompts is not None:
            self._prompts.close()
        self._prompts = self.refused = None
        self._plan = [], []
        self._plain = self._make_plain()

    def _make_plain(self) -> Any:
        return LRUPromptCache(self._sequences, int(self._tiers.host_gb * GIB))

    # ---- requests

    def plan(self, prompt: list[int], ends: Sequence[int]) -> list[int]:
        """Announces a prompt. Returns after which tokens a pass should end to store a state.

        ends: where the messages of the prompt end. A state there serves prompts whose next message
        is another one.
        """
        if self._prompts is None or _has_images(prompt):
            return []
        stops = self._prompts.plan(prompt, ends)
        self._plan = prompt, stops
        return stops

    def fetch_nearest_cache(
        self, model_key: Any, tokens: list[int]
    ) -> tuple[list[Any] | None, list[int]]:
        """A cache that has seen a prefix of the tokens, and the rest: at least one token."""
        if self._prompts is None:
            cache, rest = self._plain.fetch_nearest_cache(model_key, tokens)
            # mlx-lm's server would end if a prompt had no rest.
            return (cache, rest) if rest else (None, tokens)
        if _has_images(tokens):
            if not self.failures["images"]:
                _log.warning("prompts with images are not cached")
            self.failures["images"] += 1
            return None, tokens
        fresh, seen = self._prompts.restore(tokens)
        prompt, stops = self._plan
        planned = PlannedCache(
            fresh,
            list(tokens),
            seen,
            [stop for stop in stops if prompt == tokens and stop > seen],
            lambda stop: self.insert_cache(model_key, tokens[:stop], fresh),
        )
        return planned, tokens[seen:]

    def insert_cache(
        self, model_key: Any, tokens: list[int], cache: list[Any], *, cache_type: str = "assistant"
    ) -> None:
        """Stores a cache that has seen the tokens.

        cache: a :class:`RequestCache` at the end of its request, which is announced to the policy.
        """
        if self._prompts is None:
            self._plain.insert_cache(model_key, tokens, cache, cache_type=cache_type)
        elif not _has_images(tokens):
            prompt = len(cache.prompt) if isinstance(cache, RequestCache) else None
            self._prompts.store(tokens, cache, prompt=prompt)

    # ---- sizes

    def __len__(self) -> int:
        """The number of boundaries that can be resumed from."""
        return len(self._plain if self._prompts is None else self._prompts)

    @property
    def nbytes(self) -> int:
        """The size of what is stored, rounded up to whole slots."""
        return int(self._plain.nbytes if self._prompts is None else self._prompts.nbytes)

    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> None:
        """Trims mlx-lm's own cache. A store never exceeds its budget."""
        if self._prompts is None:
            self._plain.trim_to(n_sequences=n_sequences, n_bytes=n_bytes)

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        """The number and the bytes of entries, by kind."""
        held = self._plain if self._prompts is None else self._prompts
        found: dict[str, dict[str, int]] = held.stats_by_type()
        return found


def _has_images(tokens: Sequence[int]) -> bool:
    """Whether a prompt has images. mlx-lm's server represents them by negative ids."""
    return any(token < 0 for token in tokens)
