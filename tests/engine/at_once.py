"""Requests at once: restored, and by vLLM's own hits at the same boundaries in the same steps.

Batches change rounding, so results of one batch compare with those of the same batch alone. What is
loaded is there for all requests in one step, and the reference sends those requests for that step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from harness import Engine, Prompt, Result, patched, whole_hits

# Steps before the first load has ended.
LEAD = 2
LOAD_SECONDS = 60.0


@dataclass(frozen=True)
class Batch:
    """Results by prompt; and by step which prompts were computed, and how many tokens of each."""

    results: list[Result]
    steps: list[tuple[tuple[int, int], ...]]

    @property
    def loaded(self) -> list[bool]:
        """Which prompts had something loaded."""
        return [result.host > 0 for result in self.results]

    @property
    def first_after_loads(self) -> int:
        """The step that the first of those prompts was in."""
        waited = {at for at, loaded in enumerate(self.loaded) if loaded}
        steps = enumerate(self.steps)
        return next((i for i, step in steps if waited & {at for at, _ in step}), len(self.steps))


def restored(engine: Engine, prompts: Sequence[Prompt], n: int = 4) -> Batch:
    """Prompts at once. As far as the engine is told, all loads end at the same time."""
    held = _HeldLoads(engine)
    with _scheduled(engine) as log:
        with patched(engine.worker, "_poll", held):
            names = [engine.submit(prompt, n) for prompt in prompts]
            for _ in range(LEAD):
                engine.step()
            held.wait()
        with patched(engine.worker, "_poll", held.release):
            engine.step()
        results = engine.finish(names)
    batch = Batch(results, _by_index(log, names))
    assert held.count == sum(batch.loaded), "a load began after the others had ended"
    return batch


def local_hits(engine: Engine, prompts: Sequence[Prompt], like: Batch, n: int = 4) -> Batch:
    """The same batch on vLLM's own prefix hits."""
    manager = engine.scheduler.kv_cache_manager
    find, lookup = manager.coordinator.find_longest_cache_hit, manager.get_computed_blocks
    names: dict[int, str] = {}
    likes: dict[str, Result] = {}
    longest_hit = 0

    def capped_find(hashes: Any, longest: int) -> Any:
        return find(hashes, min(longest, longest_hit))

    def capped_lookup(request: Any) -> Any:
        nonlocal longest_hit
        result = likes[request.request_id.rpartition("-")[0]]
        longest_hit = result.resumed
        blocks, hit, _ = lookup(request)
        return blocks, hit, result.fork

    def submit(loaded: bool) -> None:
        for at, prompt in enumerate(prompts):
            if like.loaded[at] == loaded:
                names[at] = engine.submit(prompt, n)
                likes[names[at]] = like.results[at]

    with (
        engine.looking_away(),
        _scheduled(engine) as log,
        patched(manager.coordinator, "find_longest_cache_hit", capped_find),
        patched(manager, "get_computed_blocks", capped_lookup),
        whole_hits(manager.coordinator),
        _known_states_at_once(engine),
    ):
        submit(loaded=False)
        while len(log) < like.first_after_loads and engine.scheduler.has_unfinished_requests():
            engine.step()
        submit(loaded=True)
        in_order = [names[at] for at in range(len(prompts))]
        results = engine.finish(in_order)
    batch = Batch(results, _by_index(log, in_order))
    assert [each.resumed for each in results] == [each.resumed for each in like.results]
    assert batch.steps == like.steps, "not the same steps: results cannot be compared"
    return batch


def check_loaded_blocks(engine: Engine, prompt: Prompt, result: Result) -> None:
    """Asserts that blocks loaded for a request are those that vLLM computes, bit for bit.

    For requests whose batches nothing repeats. Both caches are emptied.
    """
    assert result.host > 0
    loaded = engine.local_hit(prompt, result)
    engine.reset_all()
    with engine.looking_away():
        engine.run(prompt)
    assert loaded == engine.local_hit(prompt, result)
    engine.reset_all()


@contextmanager
def loads(engine: Engine) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
    """Notes the class and the slots of every entry that is loaded."""
    start, noted = engine.worker.start_copies, []

    def watched(step: Any) -> None:
        noted.extend((item, tuple(slots)) for job in step.loads for item, slots, *_ in job.entries)
        start(step)

    with patched(engine.worker, "start_copies", watched):
        yield noted


class _HeldLoads:
    """Loads that, as far as the engine is told, have not ended; stores end as they do."""

    def __init__(self, engine: Engine) -> None:
        self.worker, self.poll = engine.worker, engine.worker._poll
        self.held: list[Any] = []
        self.count = 0

    def __call__(self) -> list[Any]:
        done = list(self.poll())
        self.held += [each for each in done if each.ticket in self.worker._loads]
        return [each for each in done if each not in self.held]

    def wait(self) -> None:
        """Waits until every load has ended."""
        deadline, others = time.monotonic() + LOAD_SECONDS, []
        while len(self.held) < len(self.worker._loads):
            assert time.monotonic() < deadline, f"loads did not end in {LOAD_SECONDS} s"
            others += self()
            time.sleep(0.001)
        self.count = len(self.held)
        self.held += others

    def release(self) -> list[Any]:
        held, self.held = self.held, []
        return [*held, *self.poll()]


@contextmanager
def _scheduled(engine: Engine) -> Iterator[list[list[tuple[str, int]]]]:
    """Notes what each step computes; steps of nothing are left out."""
    schedule, log = engine.scheduler.schedule, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        if output.num_scheduled_tokens:
            tokens = output.num_scheduled_tokens.items()
            log.append([(name.rpartition("-")[0], count) for name, count in tokens])
        return output

    with patched(engine.scheduler, "schedule", watched):
        yield log


def _by_index(
    log: list[list[tuple[str, int]]], names: Sequence[str]
) -> list[tuple[tuple[int, int], ...]]:
    at = {name: index for index, name in enumerate(names)}
    return [tuple((at[name], count) for name, count in step) for step in log]


@contextmanager
def _known_states_at_once(engine: Engine) -> Iterator[None]:
    """vLLM lets a request wait for a step if the state that it hits belongs to another of the same
    step, even if the state was known before. What was loaded does not wait, so neither does this.
    """
    pool = engine.pool

    class NewStates(set):
        known: frozenset[Any] = frozenset()

        def clear(self) -> None:
            self.known = frozenset(pool.cached_block_hash_to_block._cache)
            super().clear()

        def __contains__(self, key: object) -> bool:
            return super().__contains__(key) and key not in self.known

    with ExitStack() as stack:
        for manager in engine.scheduler.kv_cache_manager.coordinator.single_type_managers:
            if hasattr(manager, "cached_blocks_this_step"):
                stack.enter_context(patched(manager, "cached_blocks_this_step", NewStates()))
        yield
