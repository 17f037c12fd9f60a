"""An engine core around vLLM's real scheduler: `EngineCore.step` with simulated workers."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from vllm.config import KVEventsConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from hybrid_pages._core import PrefixKeys
from hybrid_pages.vllm.connector import HybridPagesConnector
from hybrid_pages.vllm.metrics import KINDS
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

from .anywhere import Anywhere
from .audit import Audit
from .config import engine_config, plan_kv_caches
from .function import Image, Origin, continuation
from .local_cache import LocalCache
from .memory import Memory, representative
from .runner import Runner
from .shapes import GDN, Shape
from .speculation import Speculation
from .stages import Pipeline, Work, in_touch
from .taken import taken

StartEngine = Callable[..., "Engine"]

MODEL = "the model"

CONNECTOR = {
    "kv_connector": "HybridPagesConnector",
    "kv_connector_module_path": "hybrid_pages.vllm.connector",
}


def connector(**extra: Any) -> dict[str, Any]:
    """The transfer configuration of HybridPagesConnector; a small budget unless told otherwise."""
    return CONNECTOR | {"kv_connector_extra_config": {"host_gb": 0.004} | extra}


def move_away(worker: KVConnectorBase_V1) -> None:
    """As in a process of its own: nothing but messages goes between the halves."""
    for child in getattr(worker, "sub_connectors", [worker]):
        half = getattr(child, "worker", None)
        if half is not None:
            begin = half.begin
            half.begin = lambda step, begin=begin: begin(replace(step, half=None))


def hide_plane(worker: KVConnectorBase_V1) -> None:
    """As on a node of its own: the scheduler cannot open the memory of the worker."""
    for child in getattr(worker, "sub_connectors", [worker]):
        half = getattr(child, "worker", None)
        if half is not None:
            half.report.plane = "/nowhere"


def origin_of(request: Request, versions: Mapping[str, int]) -> Origin:
    """Everything that simulated bytes depend on beyond tokens.

    The salt is among it, unlike in a real model: then a page that crosses salts is a wrong page.
    `versions` counts the updates of the model's weights, as MODEL, and those of adapters by name.
    """
    lora = request.lora_request
    weights = versions.get(MODEL, 0), versions.get(lora.lora_name if lora else "", 0)
    adapter = None if lora is None else (lora.lora_name, lora.lora_int_id, lora.lora_path)
    images = tuple(
        Image(item.identifier, item.mm_position.offset, item.mm_position.length)
        for item in request.mm_features
    )
    return Origin((request.cache_salt, adapter, weights), images)


def through_pipe(message: Any) -> Any:
    """As the other process gets it."""
    return pickle.loads(pickle.dumps(message))


@dataclass
class Result:
    """The end of one request."""

    request: Request
    origin: Origin
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    aborted: bool = False
    local_tokens: int = 0
    restored_tokens: int = 0
    told: dict[str, Any] | None = None
    """The ``kv_transfer_params`` of the answer."""

    @property
    def done(self) -> bool:
        return self.finish is not None or self.aborted

    def check(self) -> None:
        """Compares the generated tokens with those that the function gives after the prompt."""
        prompt = self.request.prompt_token_ids
        expected = continuation(self.origin, prompt, self.request.max_tokens)
        found = self.tokens
        if self.aborted:
            assert found == expected[: len(found)], self.request.request_id
        else:
            assert (self.finish, found) == ("length", expected), self.request.request_id


class Engine:
    """A scheduler, its workers, and the connector's halves between them."""

    waits_for_memory = True
    """Whether pinning ends before the first step."""

    def __init__(
        self,
        shape: Shape = GDN,
        *,
        transfer: dict[str, Any] | None = None,
        blocks: int = 96,
        batched_tokens: int = 128,
        requests: int = 8,
        ranks: int = 1,
        nodes: int = 1,
        async_scheduling: bool = True,
        runner_version: int = 2,
        match_unit: int | None = None,
        retention: int | None = 0,
        in_process: bool = False,
        data_parallel: tuple[int, int] = (0, 1),
        events: KVEventsConfig | None = None,
        speculation: Speculation | None = None,
        model: Path | None = None,
        priorities: bool = False,
        pool: float = 0.0,
        context: int = 1,
        run: int = 1,
        split: Sequence[int] = (),
    ) -> None:
        """split: the pipeline stage of each layer, if there are several, each with ``ranks``."""
        self.speculation = speculation
        if speculation is not None:
            shape = speculation.shape(shape)
        self.split, self.stages = split, max(split, default=0) + 1
        self.shape, self.ranks, self.in_process = shape, ranks * self.stages, in_process
        self.versions: dict[str, int] = {}
        self.config = engine_config(
            shape,
            blocks=blocks,
            batched_tokens=batched_tokens,
            requests=requests,
            ranks=ranks,
            async_scheduling=async_scheduling,
            retention=retention,
            connector=transfer,
            events=events,
            speculation=speculation,
            priorities=priorities,
            context=context,
            run=run,
            stages=self.stages,
        )
        self.config.parallel_config.nnodes = nodes
        if model is not None:
            self.config.model_config.model = str(model)
        self._place(*data_parallel)
        with mock.patch.dict(os.environ, VLLM_USE_V2_MODEL_RUNNER=str(runner_version - 1)):
            self._start(runner_version, async_scheduling, match_unit, pool)

    def _place(self, rank: int, size: int) -> None:
        """As `run_engine_core` does for a rank of a mixture of experts."""
        parallel, transfer = self.config.parallel_config, self.config.kv_transfer_config
        parallel.data_parallel_size = parallel.data_parallel_size_local = size
        parallel.data_parallel_rank = parallel.data_parallel_index = rank
        if transfer is not None and size > 1:
            transfer.engine_id = f"engine_dp{rank}"

    def _start(
        self, runner_version: int, async_scheduling: bool, match_unit: int | None, pool: float
    ) -> None:
        """As the engine core starts: workers, their memory, the scheduler, the handshake."""
        shape = self.shape
        plan, worker_plans, block_tokens, hash_tokens = plan_kv_caches(
            self.config, shape, match_unit, pool, self.split
        )
        self.plan = plan
        self._origins: dict[str, Origin] = {}
        self._external: dict[str, int] = {}
        self._local: dict[str, int] = {}
        self._asynchronous = async_scheduling
        of_stages = worker_plans[:: len(worker_plans) // self.stages] if self.split else []
        tensors = [self._memory(each, self._kernels(each), 0).tensors for each in of_stages]
        with in_touch(self.config, list(zip(of_stages, tensors, strict=True))):
            self.runners = [
                self._runner(rank, worker_plan, runner_version)
                for rank, worker_plan in enumerate(worker_plans)
            ]
        self._pipeline = Pipeline(self)
        scheduler = AsyncScheduler if async_scheduling else Scheduler
        self.scheduler: Scheduler = scheduler(
            vllm_config=self.config,
            kv_cache_config=plan,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=block_tokens,
            hash_block_size=hash_tokens,
            log_stats=True,
        )
        # The model that the configuration names has no images: there is room for theirs.
        self.scheduler.max_num_encoder_input_tokens = 512
        self.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=4096)
        self._loading: dict[str, list[tuple[int, int]]] = {}
        self._aggregator: KVOutputAggregator | None = None
        if self.connector is not None:
            self._connect()
        hash_function = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(hash_tokens, hash_function)
        self._depth = self.config.max_concurrent_batches if self.split else 1 + async_scheduling
        self._queue: deque[tuple[SchedulerOutput, ModelRunnerOutput | Work]] = deque()
        self._ids = itertools.count()
        self.results: dict[str, Result] = {}
        self.statistics: list[SchedulerStats] = []
        self.steps = 0
        self.local_cache = LocalCache(self)
        self.watches_local_cache = False
        """Whether vLLM's own prefix cache is checked after each step."""

    def _note_tails(self) -> None:
        """Has those that stay in vLLM's pool checked like whole blocks."""
        children = getattr(self.connector, "sub_connectors", [self.connector])
        if not any(isinstance(child, HybridPagesConnector) for child in children):
            return
        tails = self.half.engine_tails
        keep = tails.keep

        def noted(tracked: Tracked, tables: Sequence[Sequence[int]]) -> bool:
            kept: bool = keep(tracked, tables)
            if kept:
                end = tracked.run.position
                blocks = [ids[end // self.block_tokens] for ids in tables]
                self.local_cache.note_tail(tracked.request.request_id, end, blocks)
            return kept

        tails.keep = noted

    @property
    def block_tokens(self) -> int:
        """The scheduler's block, of which hits are multiples."""
        return self.scheduler.block_size

    @property
    def connector(self) -> KVConnectorBase_V1 | None:
        """The scheduler half."""
        return self.scheduler.connector

    @property
    def half(self) -> Any:
        """This package's scheduler half, alone or beside other connectors."""
        children = getattr(self.connector, "sub_connectors", [self.connector])
        return next(
            child for child in children if isinstance(child, HybridPagesConnector)
        ).scheduler

    @property
    def cache(self) -> Any:
        """The connector's cache."""
        return self.half.connection.cache

    def find_in(self, cache: Any) -> None:
        """Has prompts looked up in this in place of the cache, and restored from it."""
        restores = self.half.connection.loads.restores
        restores.cache = restores.lookups.cache = cache

    def _kernels(self, plan: Any) -> list[int]:
        """The tokens of a kernel block, by group."""
        return [
            group.kv_cache_spec.block_size
            if self.shape.kernel_tokens is None
            or isinstance(representative(group.kv_cache_spec), MambaSpec)
            else self.shape.kernel_tokens
            for group in plan.kv_cache_groups
        ]

    def _runner(self, rank: int, plan: Any, version: int) -> Runner:
        memory = self._memory(plan, self._kernels(plan), rank)
        worker = None
        if self.config.kv_transfer_config is not None:
            config = copy.copy(self.config)
            config.parallel_config = copy.copy(config.parallel_config)
            config.parallel_config.rank = rank
            node = rank * config.parallel_config.nnodes // self.ranks
            config.parallel_config.node_rank = node
            with set_current_vllm_config(config):
                worker = KVConnectorFactory.create_connector(
                    config=config, role=KVConnectorRole.WORKER, kv_cache_config=plan
                )
            worker.register_kv_caches(memory.tensors)
            if node:
                hide_plane(worker)
            if isinstance(worker, Anywhere):
                worker.memory, worker.origins = memory, self._origins
            elif not self.in_process:
                move_away(worker)
        return self._executor(
            rank,
            memory,
            worker,
            self._origins,
            version,
            speculation=self.speculation,
            asynchronous=self._asynchronous,
            external=self._external,
        )

    def _memory(self, plan: KVCacheConfig, kernels: list[int], rank: int) -> Memory:
        memory, parallel = (
            Memory(plan, self.shape.layout, kernels, rank),
            self.config.parallel_config,
        )
        memory.divide(
            parallel.decode_context_parallel_size, rank, parallel.cp_kv_cache_interleave_size
        )
        return memory

    def _executor(self, *args: Any, **kwargs: Any) -> Runner:
        return Runner(*args, **kwargs)

    def _get_ready(self) -> None:
        """Memory is pinned while vLLM warms the model up, and the handshake says so, as far as the
        connector is alone."""
        for runner in self.runners:
            pinning = getattr(getattr(runner.connector, "worker", None), "_pinning", None)
            if pinning is not None:
                assert pinning.wait(60)
                self.half.connection.got_ready({runner.rank: pinning.usable_slots}, {})

    def _connect(self) -> None:
        """Hands the workers' word to the scheduler half; notes which blocks loads may write."""
        connector = self.connector
        handshakes = {
            divmod(runner.rank, self.ranks // self.stages): payload
            for runner in self.runners
            if (payload := runner.connector.get_handshake_metadata()) is not None
        }
        connector.set_xfer_handshake_metadata_pp_aware(handshakes)
        if self.waits_for_memory:
            self._get_ready()
        self._aggregator = KVOutputAggregator.from_connector(connector, self.ranks)
        self._note_tails()
        allocated = connector.update_state_after_alloc

        def loading() -> Collection[str]:
            if isinstance(connector, Anywhere):
                return connector.in_flight
            return self.half.connection.loads.in_flight

        def note(request: Request, blocks: Any, external_tokens: int) -> None:
            allocated(request, blocks, external_tokens)
            if external_tokens and request.request_id in loading():
                memory, tables = self.runners[0].memory, blocks.get_block_ids()
                local = self._local[request.request_id]
                self._external[request.request_id] = external_tokens
                ours = [
                    [] if ring else ids[local // n : -(-(local + external_tokens) // n)]
                    for ids, n, ring in zip(tables, memory.block_tokens, memory.rings, strict=True)
                ]
                self._loading[request.request_id] = [
                    (group, block) for group, ids in enumerate(ours) for block in ids if block
                ]
                for runner in self.runners:  # their bytes are ours from here on
                    runner.garbage.difference_update(*ours)
                    if self.speculation is not None:
                        runner.drafting.loaded(ours)

        matched = connector.get_num_new_matched_tokens

        def match(request: Request, local_tokens: int) -> tuple[int | None, bool]:
            self._external.pop(request.request_id, None)
            self._local[request.request_id] = local_tokens
            return matched(request, local_tokens)

        connector.update_state_after_alloc = note
        connector.get_num_new_matched_tokens = match

    # ---- requests

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        salt: str | None = None,
        lora: LoRARequest | None = None,
        name: str | None = None,
        hints: Any = None,
        images: Sequence[Image] = (),
        priority: int = 0,
    ) -> Result:
        """Queues a request; ``hints`` are what an application says to this connector."""
        request = self._request(prompt, max_tokens, salt, lora, name, hints, images, priority)
        origin = origin_of(request, self.versions)
        self.results[request.request_id] = Result(request, origin)
        self._origins[request.request_id] = origin
        self._submit(request)
        return self.results[request.request_id]

    def _submit(self, request: Request) -> None:
        self.scheduler.add_request(request)

    def _request(
        self,
        prompt: Sequence[int],
        max_tokens: int = 1,
        salt: str | None = None,
        lora: LoRARequest | None = None,
        name: str | None = None,
        hints: Any = None,
        images: Sequence[Image] = (),
        priority: int = 0,
    ) -> Request:
        said = None if hints is None else {"kv_transfer_params": {"hybrid_pages": hints}}
        return Request(
            request_id=name or f"r{next(self._ids)}",
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(
                temperature=0.0,
                max_tokens=max_tokens,
                ignore_eos=True,
                detokenize=False,
                extra_args=said,
            ),
            pooling_params=None,
            cache_salt=salt,
            lora_request=lora,
            priority=priority,
            mm_features=[
                MultiModalFeatureSpec(
                    data=None,
                    modality="image",
                    identifier=image.name,
                    mm_position=PlaceholderRange(image.offset, image.length),
                )
                for image in images
            ],
            block_hasher=self._hasher,
        )

    def depths(self, prompt: Sequence[int]) -> list[int]:
        """Boundaries, in blocks, from which a prompt could be resumed now."""
        keys = self.keys_of(self._request(prompt))
        namespace = self.cache.namespace(b"")
        return [
            depth
            for depth in range(1, len(keys) + 1)
            if self.cache.lookup(namespace, keys, limit=depth).blocks == depth
        ]

    def keys_of(self, request: Request) -> PrefixKeys:
        """A request's keys, as the connector names them."""
        keys = self.half.connection.keys
        return keys.of(Tracked.of(request, 0, keys.none_yet()))

    def abort(self, result: Result) -> None:
        """The client went away."""
        if not result.done:
            result.aborted = True
            self.scheduler.finish_requests(
                result.request.request_id, RequestStatus.FINISHED_ABORTED
            )

    def generate(self, prompt: Sequence[int], max_tokens: int = 4, **identity: Any) -> Result:
        """Runs one request to its end, alone or beside those already queued, and checks it."""
        result = self.add(prompt, max_tokens, **identity)
        self.run()
        result.check()
        return result

    # ---- steps

    def step(self) -> bool:
        """One iteration of the engine's loop; False when there is nothing to do."""
        busy = self.scheduler.has_requests()
        if not busy and not self._queue:
            return False
        if busy:
            output = self.scheduler.schedule()
            self._queue.append((output, self._execute(output)))
            filled = len(self._queue) >= self._depth
            if not filled and (output.total_num_scheduled_tokens or self.scheduler.has_requests()):
                return True
        self._update(*self._queue.popleft())
        return True

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput | Work:
        """Runs a step; with pipeline stages only begins it."""
        self.steps += 1
        output.kv_connector_block_state = None  # never reaches a worker
        copied = taken(self, output.kv_connector_metadata)
        work = self._pipeline.plan(output, copied)
        return work if self.stages > 1 else self._finish(work)

    def run_step(
        self, runner: Runner, output: SchedulerOutput, copied: Sequence[tuple[int, int]]
    ) -> ModelRunnerOutput:
        """Runs a step on one rank."""
        self._accept_loads(runner)
        result = through_pipe(runner.execute(output))
        self._accept_loads(runner, copied)
        return result

    def _finish(self, work: Work) -> ModelRunnerOutput:
        """The output of a step that every rank has run."""
        results = self._pipeline.finish(work)
        if self.watches_local_cache and self._pipeline.in_step:
            self.local_cache.check()
        for result in results[1:]:
            assert result.sampled_token_ids == results[0].sampled_token_ids
        return results[0] if self._aggregator is None else self._aggregator.aggregate(results)

    def _accept_loads(self, runner: Runner, more: Sequence[tuple[int, int]] = ()) -> None:
        runner.memory.accept_loads(itertools.chain(*self._loading.values(), more))

    def _update(self, output: SchedulerOutput, done: ModelRunnerOutput | Work) -> None:
        model_output = self._finish(done) if isinstance(done, Work) else done
        self._received(model_output)
        self._deliver(self.scheduler.update_from_output(output, model_output))
        if self.speculation is not None and not self._asynchronous and model_output.req_ids:
            drafts = self.runners[0].take_drafts(model_output.req_ids)
            self.scheduler.update_draft_token_ids(DraftTokenIds(model_output.req_ids, drafts))

    def _received(self, model_output: ModelRunnerOutput) -> None:
        """The bytes of loads that a report calls ended are there."""
        report = model_output.kv_connector_output
        for request_id in (report.finished_recving or ()) if report is not None else ():
            for runner in self.runners:
                self._accept_loads(runner)
            self._loading.pop(request_id, None)

    def _deliver(self, by_client: Mapping[int, Any]) -> None:
        for outputs in by_client.values():
            for item in outputs.outputs:
                self._take(item)
            if outputs.scheduler_stats is not None:
                self.statistics.append(outputs.scheduler_stats)

    def _take(self, item: Any) -> None:
        result = self.results[item.request_id]
        result.tokens += item.new_token_ids
        if item.prefill_stats is not None:
            result.local_tokens = item.prefill_stats.num_local_cached_tokens
            result.restored_tokens = item.prefill_stats.num_external_cached_tokens
        if item.finish_reason is not None:
            result.finish = str(item.finish_reason)
            result.told = item.kv_transfer_params

    def run(self, limit: int = 5000) -> None:
        """Steps until the engine is idle."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"still busy after {limit} steps: {self.scheduler.requests}")

    def reset_prefix_cache(self, **options: bool) -> bool:
        """vLLM's own prefix cache forgets everything."""
        return self.scheduler.reset_prefix_cache(**options)

    def origin(self, request: Request) -> Origin:
        """Everything that the bytes of this request depend on beyond its tokens."""
        return self._origins[request.request_id]

    def update_weights(self, name: str = MODEL) -> None:
        """From now on new requests are computed with other weights."""
        self.versions[name] = self.versions.get(name, 0) + 1

    def current(self, result: Result) -> bool:
        """Whether a request was computed with today's weights."""
        return result.origin == origin_of(result.request, self.versions)

    def forget_local(self) -> None:
        """vLLM's own prefix cache loses every entry, even those of blocks in use."""
        pool = self.scheduler.kv_cache_manager.block_pool
        pool.evict_blocks({block.block_id for block in pool.blocks if block.block_hash is not None})

    @property
    def at_rest(self) -> bool:
        """Whether no step and no transfer is under way, and no waiting request holds blocks."""
        moving = self.connector is not None and self.connector.has_pending_push_work()
        return not (self._queue or self._loading or moving or self.scheduler.kv_holding_waiting)

    # ---- what must hold when nothing runs

    def check_idle(self) -> None:
        """No request, block or lease is left over, and every text is right."""
        assert not self.scheduler.requests and not self._queue and not self._loading
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == self.plan.num_blocks - 1, "blocks leaked"
        for result in self.results.values():
            assert result.done, f"{result.request.request_id} never finished"
            result.check()
        for runner in self.runners:
            self._accept_loads(runner)
        self.local_cache.check(anew=True)
        if self.connector is not None and not isinstance(self.connector, Anywhere):
            self._check_cache()

    def _check_cache(self) -> None:
        """Every slot is free or belongs to an entry, and every entry holds what it should."""
        half = self.half
        if half.connection.disk is not None:
            assert half.connection.disk.settle(60), "copies to the disk do not end"
        if half.connection.remote is not None:
            assert half.connection.remote.settle(60), "copies to the remote store do not end"
        self.cache.poll()
        stats = self.cache.stats()
        assert (stats["leased_slots"], stats["writing_entries"]) == (0, 0), stats
        assert not half._requests, "the scheduler half still follows finished requests"
        sizes: dict[str, list[int]] = {}
        for item in half.connection.geometry.classes:
            slots = half.connection.geometry.slots_per_entry(item.index, stats["slot_bytes"])
            sizes.setdefault(KINDS[item.kind], []).append(slots)
        # The entries of two classes of one kind are counted together.
        least = sum(stats[kind] * min(slots) for kind, slots in sizes.items())
        most = sum(stats[kind] * max(slots) for kind, slots in sizes.items())
        assert least <= stats["slots"] - stats["free_slots"] <= most, stats
        Audit(self).run()

    def close(self) -> None:
        """Ends the connector's copies."""
        for runner in self.runners:
            if runner.connector is not None:
                runner.connector.shutdown()
        self.scheduler.shutdown()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
