"""A real vLLM engine in this process, driven step by step.

The reference for every comparison is vLLM's own local prefix hit at the same boundary: the same
prompts on the same engine with the connector looking away, and the local hit capped at the depth
restored.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.inputs import TokensPrompt
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

import gpu_path
from hybrid_pages._core import PrefixKeys
from hybrid_pages.demo.models import FIRST_TOKEN, VOCAB
from hybrid_pages.vllm.layout.grid import BlockGrid

gpu_path.install()

Prompt = tuple[int, ...]
# More than batching and the splitting of prefills alone do to log-probabilities on these models. It
# tells gross errors only: one wrong page may move them less. `local_hit` and `at_once` are exact.
NOISE = 0.5
# A number of steps no test needs; reaching it means that the engine hangs.
MANY_STEPS = 2000


def tokens(seed: object, count: int) -> Prompt:
    """Random tokens, the same for the same seed."""
    rng = random.Random(repr(seed))
    return tuple(rng.randrange(FIRST_TOKEN, VOCAB) for _ in range(count))


@dataclass(frozen=True)
class Result:
    """The result of a request. Two are equal when their texts are, bit for bit."""

    tokens: tuple[int, ...]
    # One {token: log-probability} a position: the chosen one and the most likely ones.
    logprobs: tuple[tuple[tuple[int, float], ...], ...]
    local: int = field(compare=False)
    host: int = field(compare=False)
    fork: int = field(compare=False)
    finished: str | None = field(compare=False)
    preemptions: int = field(compare=False)

    @property
    def resumed(self) -> int:
        """Tokens not computed when it was first scheduled."""
        return self.local + self.host

    def distance(self, other: Result) -> float:
        """The largest |delta log-probability| up to the first token that differs, included.

        A token that one side does not list is at most as likely there as the least one listed. What
        is not a number is infinitely far.
        """
        worst = 0.0
        for mine, theirs, a, b in zip(
            self.logprobs, other.logprobs, self.tokens, other.tokens, strict=True
        ):
            left, right = dict(mine), dict(theirs)
            worst = max(worst, _gap(left, right), _gap(right, left))
            if a != b:
                break
        return worst


def _gap(left: dict[int, float], right: dict[int, float]) -> float:
    least = min(right.values())
    gaps = [
        abs(value - right[token]) if token in right else max(0.0, value - least)
        for token, value in left.items()
    ]
    return math.inf if any(map(math.isnan, [*gaps, least])) else max(gaps)


def _ours(connector: Any) -> Any:
    children = getattr(connector, "sub_connectors", [connector])
    return next(child for child in children if type(child).__name__ == "HybridPagesConnector")


@dataclass
class _Start:
    local: int
    host: int
    fork: int


class Engine:
    """One engine with the connector in it, scheduled asynchronously unless told otherwise."""

    def __init__(
        self,
        model: Path,
        settings: Mapping[str, Any] | None = None,
        *,
        inside: bool = False,
        **engine_args: Any,
    ) -> None:
        """inside: as by default, requests resume inside blocks, too. Else they resume at boundaries
        alone, where vLLM's own hits are a reference for each bit."""
        with nullcontext() if inside else mock.patch.object(BlockGrid, "no_tails", "a test's"):
            self.llm = self._start(model, settings, engine_args)
        self._finish_start(inside, engine_args)

    @staticmethod
    def _start(
        model: Path, settings: Mapping[str, Any] | None, engine_args: Mapping[str, Any]
    ) -> LLM:
        return LLM(
            **dict(
                dict(
                    model=str(model),
                    skip_tokenizer_init=True,
                    dtype="bfloat16",
                    enforce_eager=True,
                    block_size=32,
                    max_model_len=4096,
                    max_num_seqs=16,
                    max_num_batched_tokens=2048,
                    kv_cache_memory_bytes=256 << 20,
                    enable_prefix_caching=True,
                    disable_hybrid_kv_cache_manager=False,
                    disable_log_stats=False,
                    kv_transfer_config=dict(
                        kv_connector="HybridPagesConnector",
                        kv_role="kv_both",
                        kv_connector_extra_config={"host_gb": 0.25, **(settings or {})},
                    ),
                ),
                **engine_args,
            )
        )

    def _finish_start(self, inside: bool, engine_args: Mapping[str, Any]) -> None:
        self.vllm = self.llm.llm_engine
        self.core = self.vllm.engine_core.engine_core
        self.scheduler = self.core.scheduler
        asked = engine_args.get("async_scheduling") is not False
        if isinstance(self.scheduler, AsyncScheduler) != asked:
            raise RuntimeError(f"expected {asked=}, found {type(self.scheduler)}")
        self.connector = self.scheduler.connector
        self.worker_connector = get_kv_transfer_group()
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.N: int = self.scheduler.block_size
        self._ids = itertools.count()
        self._starts: dict[str, _Start] = {}
        self._done: dict[str, Result] = {}
        self._submitted: set[str] = set()
        self._preemptions: dict[str, int] = {}
        self._away = False
        self.last_hashes: list[bytes] = []
        self._last_keys: PrefixKeys | None = None
        self._last_place: Any = None
        self._watch()
        if not inside:
            # Beside other connectors, reports come with the first step.
            self.half.connection._allow_tails = lambda: None
            lookups = self.half.connection.loads.restores.lookups
            lookups._look_inside = lambda *args: None

    @property
    def half(self) -> Any:
        """The connector's scheduler half, alone or in a MultiConnector."""
        return _ours(self.connector).scheduler

    @property
    def worker(self) -> Any:
        """The connector's worker half."""
        return _ours(self.worker_connector).worker

    def shutdown(self) -> None:
        """Ends the engine, so that another can start in this process."""
        self.vllm.engine_core.shutdown()

    # ---- running

    def submit(
        self,
        prompt: Sequence[int],
        n: int = 4,
        *,
        salt: str | None = None,
        lora: Any = None,
        **sampling: Any,
    ) -> str:
        """Queues a request; `finish` or `step` run it."""
        params = SamplingParams(
            **dict(
                dict(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False, logprobs=5),
                **sampling,
            )
        )
        content = TokensPrompt(prompt_token_ids=list(prompt))
        if salt is not None:
            content["cache_salt"] = salt
        name = f"r{next(self._ids)}"
        self._submitted.add(name)
        self.vllm.add_request(name, content, params, lora_request=lora)
        return name

    def step(self) -> None:
        """One engine step."""
        for output in self.vllm.step():
            if output.finished:
                name, completion = output.request_id, output.outputs[0]
                start = self._starts.pop(name, _Start(0, 0, 0))
                self._done[name] = Result(
                    tuple(completion.token_ids),
                    tuple(
                        tuple(sorted((token, entry.logprob) for token, entry in position.items()))
                        for position in completion.logprobs
                    ),
                    start.local,
                    start.host,
                    start.fork,
                    completion.finish_reason,
                    self._preemptions.pop(name, 0),
                )

    def steps_until(self, condition: Callable[[], bool], what: str = "the condition") -> None:
        """Steps until `condition` holds."""
        for _ in range(MANY_STEPS):
            if condition():
                return
            self.step()
        raise AssertionError(f"{what} did not come about in {MANY_STEPS} steps")

    def finish(self, names: Sequence[str]) -> list[Result]:
        """Steps until these requests have finished and every copy has ended."""
        self.steps_until(lambda: all(name in self._done for name in names), f"the end of {names}")
        self.drain()
        return [self._done.pop(name) for name in names]

    def drain(self) -> None:
        """Steps until nothing is left to do, copies included."""
        self.steps_until(lambda: not self.core.scheduler.has_requests(), "an idle engine")

    def abort(self, name: str) -> None:
        """Aborts a request by its name."""
        self.vllm.abort_request([name])
        self._done.pop(name, None)

    def abandon(self) -> None:
        """Aborts whatever is unfinished."""
        self.vllm.abort_request(list(self._submitted - self._done.keys()))
        self.drain()
        self._submitted.clear()
        self._done.clear()

    def run(self, prompt: Sequence[int], n: int = 4, **kwargs: Any) -> Result:
        """One request, alone."""
        return self.finish([self.submit(prompt, n, **kwargs)])[0]

    def run_all(self, prompts: Sequence[Sequence[int]], n: int = 4, **kwargs: Any) -> list[Result]:
        """Requests at once."""
        return self.finish([self.submit(prompt, n, **kwargs) for prompt in prompts])

    def cold(self, prompt: Sequence[int], n: int = 4, **kwargs: Any) -> Result:
        """One request, alone, that reads no cache."""
        return self.run(prompt, n, skip_reading_prefix_cache=True, **kwargs)

    # ---- caches

    def reset_local(self) -> None:
        """Empties vLLM's own prefix cache; the cache stays."""
        assert self.vllm.reset_prefix_cache(), "vLLM could not reset its prefix cache"

    def reset_all(self) -> None:
        """Empties vLLM's own prefix cache and ours."""
        assert self.vllm.reset_prefix_cache(reset_connector=True), "the caches were not reset"

    def stats(self) -> dict[str, float]:
        """All counters and gauges, flat."""
        data = self.half.stats()
        return {**data["counters"], **data["gauges"]}

    @contextmanager
    def counting(self) -> Iterator[dict[str, float]]:
        """Counts inside the block; filled in at its end."""
        before, delta = self.half.stats()["counters"], {}
        yield delta
        for key, value in self.half.stats()["counters"].items():
            if value != before.get(key, 0):
                delta[key] = value - before.get(key, 0)

    def entries_of_last(self) -> list[tuple[int, list[int]]]:
        """Class and arena slots of the entries that a resend of the last request would load, by
        block."""
        cache, place = self.half.connection.cache, self._last_place
        inside = {"limit": place.whole, "tail": place.tail} if place and place.tail else {}
        with cache.acquire(cache.namespace(b""), self._last_keys, **inside) as lease:
            return [
                (entry.class_index, list(entry.slots))
                for entry in sorted(lease.entries, key=lambda entry: entry.block_index)
            ]

    def slots_of_last(self, kind: str) -> list[list[int]]:
        """Arena slots of those of one kind."""
        classes = self.half.connection.geometry.classes
        return [slots for item, slots in self.entries_of_last() if classes[item].kind == kind]

    # ---- the reference

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """The connector finds and stores nothing: whatever hits is vLLM's own."""
        loads = self.half.connection.loads
        with patched(self, "_away", True), patched(loads, "alone", False):
            yield

    @contextmanager
    def at_boundaries(self) -> Iterator[None]:
        """Requests resume at boundaries alone, as from vLLM's own cache."""
        lookups = self.half.connection.loads.restores.lookups
        with patched(lookups, "_look_inside", lambda *args: None):
            yield

    def local_hit(self, prompt: Sequence[int], like: Result, n: int = 4, **kwargs: Any) -> Result:
        """Runs a prompt on vLLM's own prefix hit at the boundary `like` resumed from.

        With drafts too, where vLLM goes back by a block from what it has.
        """
        manager = self.scheduler.kv_cache_manager
        find, lookup = manager.coordinator.find_longest_cache_hit, manager.get_computed_blocks

        def capped_find(hashes: Any, longest: int) -> Any:
            return find(hashes, min(longest, like.resumed))

        def capped_lookup(request: Any) -> Any:
            blocks, hit, _ = lookup(request)
            return blocks, hit, like.fork

        with (
            self.looking_away(),
            patched(manager.coordinator, "find_longest_cache_hit", capped_find),
            patched(manager, "get_computed_blocks", capped_lookup),
            whole_hits(manager.coordinator),
        ):
            result = self.run(prompt, n, **kwargs)
        assert result.local == like.resumed, (
            f"vLLM's own hit: expected the boundary {like.resumed}, found {result.local}"
        )
        return result

    def own_blocks_agree(
        self, prompts: Sequence[Prompt], results: Sequence[Result]
    ) -> list[Result]:
        """Compares restored blocks, which vLLM holds now, with those that it computes itself.

        Each prompt runs alone on both, up to the boundary that its result resumed from. vLLM's own
        blocks are held afterwards.
        """
        pairs = list(zip(prompts, results, strict=True))
        with self.looking_away():
            on_restored = [self.local_hit(prompt, result) for prompt, result in pairs]
        self.reset_all()
        with self.looking_away():
            self.run_all(prompts)
            on_own = [self.local_hit(prompt, result) for prompt, result in pairs]
        assert on_restored == on_own
        return on_own

    def restored(self, warm: Sequence[Prompt], prompt: Prompt, n: int = 4) -> Result:
        """Stores `warm`, forgets vLLM's own cache, runs `prompt`, and holds the result against
        vLLM's own prefix hit at the same boundary after the same `warm`."""
        self.reset_all()
        before = [self.run(each).resumed for each in warm]
        self.reset_local()
        with self.at_boundaries():
            result = self.run(prompt, n)
        self.reset_all()
        with self.looking_away():
            assert [self.run(each).resumed for each in warm] == before
        reference = self.local_hit(prompt, result, n)
        assert result == reference, f"max |delta logprob| {result.distance(reference)}"
        return result

    # ---- pressure

    @contextmanager
    def squeezed(self, free: int) -> Iterator[None]:
        """Leaves vLLM's block pool only so many free blocks."""
        taken = self.pool.get_new_blocks(self.pool.get_num_free_blocks() - free)
        try:
            yield
        finally:
            self.pool.free_blocks(taken)

    def preempt_last(self) -> None:
        """Preempts the request admitted last, as a lack of blocks would."""
        request = self.scheduler.running.pop()
        self.scheduler._preempt_request(request, time.monotonic())

    # ---- observation

    def _watch(self) -> None:
        """Notes where each request is first scheduled, and every preemption."""
        allocated = self.connector.update_state_after_alloc
        matched = self.connector.get_num_new_matched_tokens
        local_hits: dict[str, int] = {}
        preempt = self.scheduler._preempt_request

        def name_of(request: Any) -> str:
            return request.request_id.rpartition("-")[0]

        def watched_match(request: Any, local: int) -> Any:
            local_hits[request.request_id] = local
            self.last_hashes = list(request.block_hashes)
            keys = self.half.connection.keys
            of_request = SimpleNamespace(request=request, keys=keys.none_yet())
            self._last_keys = keys.of(of_request)
            if self._away:
                if not request.shared_prefix_boundary and request.num_tokens % self.N == 0:
                    # vLLM drops the state at the very end of a prompt, where a step ends anyway;
                    # as a reference for what was restored from there it has to keep it.
                    request.shared_prefix_boundary = request.num_tokens
                return 0, False
            found = matched(request, local)
            tracked = self.half._requests.get(request.request_id)
            self._last_place = tracked.place if tracked else None
            if tracked and tracked.engine_tail and not found[0]:
                local_hits[request.request_id] = tracked.engine_tail.tokens
            return found

        def watched_alloc(request: Any, blocks: Any, external: int) -> None:
            local = local_hits.pop(request.request_id, None)
            if local is not None:
                self._starts.setdefault(
                    name_of(request), _Start(local, external, request.shared_prefix_boundary)
                )
            allocated(request, blocks, external)

        def watched_preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
            name = name_of(request)
            self._preemptions[name] = self._preemptions.get(name, 0) + 1
            return preempt(request, *args, **kwargs)

        self.connector.get_num_new_matched_tokens = watched_match
        self.connector.update_state_after_alloc = watched_alloc
        self.scheduler._preempt_request = watched_preempt


@contextmanager
def whole_hits(coordinator: Any) -> Iterator[None]:
    """vLLM's own hits keep their last block, which it leaves out where drafts are made."""
    if not coordinator.eagle_group_ids:
        yield
        return
    groups = [group._replace(use_eagle=False) for group in coordinator.attention_groups]
    with patched(coordinator, "attention_groups", groups):
        yield


@contextmanager
def patched(target: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replaces one attribute of one object inside the block."""
    missing = object()
    before = vars(target).get(name, missing)
    setattr(target, name, replacement)
    try:
        yield
    finally:
        if before is missing:
            delattr(target, name)
        else:
            setattr(target, name, before)
