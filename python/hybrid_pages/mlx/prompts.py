"""What a server knows of the prompts of one model, over a :class:`CacheStore`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from hybrid_pages import InvalidArgumentError
from hybrid_pages.adapter.admission import Admissions, deserving, last_boundary
from hybrid_pages.adapter.keys import Prefix
from hybrid_pages.adapter.store import Closing
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.mlx.store import CacheStore

_log = logging.getLogger(__name__)


class Prompts(Closing):
    """Stores and restores the prompts of a server's requests.

    :meth:`plan`, :meth:`restore` and :meth:`store` do not raise: a failure is a miss, logged and
    counted in ``failures``.

    Args:
        model: from ``mlx_lm.load``.
        tiers: settings of the store.
        block_tokens: tokens per block.
        failures: gets the counts.

    Raises:
        HybridPagesError: as :class:`CacheStore`.
    """

    def __init__(
        self, model: Any, tiers: TierSettings, block_tokens: int, failures: Counter[str]
    ) -> None:
        self.failures = failures
        self._model, self._block_tokens = model, block_tokens
        self._store = CacheStore(
            model,
            host_gb=tiers.host_gb,
            block_tokens=block_tokens,
            disk_path=tiers.disk_path,
            disk_gb=tiers.disk_gb,
            encrypt_key=tiers.encrypt_key or None,
        )
        self._admissions = Admissions(self._store.index, block_tokens)

    def plan(self, prompt: list[int], ends: Sequence[int]) -> list[int]:
        """Announces a prompt. Returns after which tokens a pass should end to store a state.

        ends: where the messages of the prompt end. A state there serves prompts whose next message
        is another one.
        """
        with self.guard("plan"):
            size = self._block_tokens
            with self._store.using("") as namespace:
                keys = Prefix(prompt, size).keys
                admission = self._admissions.admit(namespace, keys, len(prompt))
            limit = last_boundary(len(prompt), size)
            wanted = {block * size for block in deserving(admission) if block <= limit}
            wanted |= {*ends, len(prompt) - 1}
            return sorted(stop for stop in wanted if 0 < stop < len(prompt))
        return []

    def restore(self, tokens: Sequence[int]) -> tuple[list[Any], int]:
        """A cache that has seen the longest known prefix of ``tokens[:-1]``, and its length."""
        fresh = make_prompt_cache(self._model)
        seen = 0
        with self.guard("restore"), self._store.using("") as namespace:
            seen = self._store.get(namespace, fresh, tokens)
        if not seen:
            fresh = make_prompt_cache(self._model)  # a restore may have failed half way
        _log.info("restored %d of %d prompt tokens", seen, len(tokens))
        return fresh, seen

    def store(
        self, tokens: Sequence[int], cache: Sequence[Any], *, prompt: int | None = None
    ) -> None:
        """Stores a cache that has seen the tokens.

        prompt: at the end of a request, how many of the tokens are its prompt's. The policy hears
        of it.
        """
        with self.guard("store"), self._store.using("") as namespace:
            self._store.layout.require_match(cache)
            seen = self._store.layout.seen(cache)
            if seen not in (None, len(tokens)):
                raise InvalidArgumentError(
                    f"tokens: expected the {seen} that the cache has seen, found {len(tokens)}"
                )
            self._store.put(namespace, cache, list(tokens))
            if prompt is not None:
                keys = Prefix(tokens, self._block_tokens).keys
                self._admissions.finish(namespace, keys, prompt, len(tokens) - prompt)

    @contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Counts and logs errors inside a ``with`` block, and goes on."""
        try:
            yield
        except Exception as error:  # the server must go on without the cache, whatever failed
            self.failures[doing] += 1
            _log.warning("could not %s a prompt: %s", doing, error)

    # ---- sizes

    def __len__(self) -> int:
        """The number of boundaries that can be resumed from."""
        now = self._store.index.stats()
        return now["checkpoints"] or now["pages"]

    @property
    def nbytes(self) -> int:
        """The size of what is stored, rounded up to whole slots."""
        return sum(each["n_bytes"] for each in self.stats_by_type().values())

    @property
    def budget(self) -> int:
        """The most bytes that may be stored."""
        return self._store.arena.nbytes

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        """The number and the bytes of entries, by kind."""
        now = self._store.index.stats()
        return {
            kind: {"n_sequences": now[f"{kind}s"], "n_bytes": now[f"{kind}_bytes"]}
            for kind in ("page", "window", "checkpoint")
        }

    def losses(self) -> dict[str, Any]:
        """What was not stored or not restored, by reason, and the counts of each tier."""
        moved = self._store.moved
        return {
            "failures": dict(self.failures),
            "failed_loads": moved.failed_loads,
            "failed_stores": moved.failed_stores,
            "late_loads": moved.late_loads,
            "skipped_entries": dict(moved.skipped_entries),
            "tiers": [dict(tier) for tier in self._store.index.tiers()],
        }

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        self._store.clear()

    def close(self) -> None:
        """Ends the use of the store. The second call does nothing."""
        self._store.close()
