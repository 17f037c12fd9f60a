"""The worker half: one rank's KV buffers, its plane of the arena, and the copies between them.

The scheduler half decides: every job names slots and blocks. A failed job is reported with its
reason, and the engine goes on.
"""

import functools
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig

from hybrid_pages import (
    Arena,
    Completion,
    CudaError,
    Geometry,
    GeometryError,
    InvalidArgumentError,
    LayerMap,
    Pinning,
    TransferError,
)
from hybrid_pages._core import StoreEntries
from hybrid_pages.adapter.memory import require_memory
from hybrid_pages.adapter.planes import require_plane
from hybrid_pages.adapter.pool import Slots
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.settings import Settings
from hybrid_pages.vllm.layout.geometry import (
    layers_here,
    planned_geometry,
    read_layout,
    require_sizes,
    whole_only,
)
from hybrid_pages.vllm.layout.stages import Exchange, together
from hybrid_pages.vllm.messages import (
    LoadJob,
    Outcome,
    Report,
    StepMetadata,
    WorkerMetadata,
    packed,
)
from hybrid_pages.vllm.processes.colocation import note_worker
from hybrid_pages.vllm.processes.nodes import Nodes, terms
from hybrid_pages.vllm.versions import logger
from hybrid_pages.vllm.worker import copy_engine
from hybrid_pages.vllm.worker.faults import Plant
from hybrid_pages.vllm.worker.pinning import Progress
from hybrid_pages.vllm.worker.states import BlockCopies, StateCopies

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_IDLE_WAIT_SECONDS = 0.002
_START_WAIT_SECONDS = 2.0


@dataclass
class _Results:
    """The jobs that have ended since the last report."""

    metadata: WorkerMetadata = field(default_factory=WorkerMetadata)
    received: set[str] = field(default_factory=set)


def exchange_of(config: "VllmConfig") -> Exchange:
    """Reaches the workers of all pipeline stages of an engine."""
    stages, _ = versions.world_of(config.parallel_config)
    return functools.partial(versions.of_all_stages, stages=stages)


class WorkerHalf:
    """The connector's half in the process of one rank.

    Args:
        settings: checked settings.
        config: the engine's configuration.
        kv_cache_config: vLLM's plan of this worker's KV cache.
        exchange: reaches the workers of all pipeline stages, which make their halves, too.
        alone: whether it is certain that there is no other connector.

    Raises:
        BudgetError: ``host_gb`` cannot hold one entry of each kind, or is more than the memory that
            is free.
    """

    def __init__(
        self,
        settings: Settings,
        config: "VllmConfig",
        kv_cache_config: KVCacheConfig,
        *,
        exchange: Exchange,
        alone: bool = False,
    ) -> None:
        self.alone = alone
        self.settings, self._config, self._kv_cache_config = settings, config, kv_cache_config
        self.rank: int = config.parallel_config.rank
        self._nodes = Nodes.of(config.parallel_config)
        self._made = uuid.uuid4().hex
        """The name of this rank's plane, which is kept until the end."""
        # The ranks of a mixture of experts wait for each other's steps.
        self._waits = config.parallel_config.data_parallel_size == 1
        self._exchange = exchange_of(config)
        self.plan = planned_geometry(config, kv_cache_config, exchange)
        if self.plan is not None:
            # If registration fails, vLLM keeps the connector for the next engine of the process.
            self._slots(self.plan)
        self.report: Report | None = None
        """This rank's geometries, for the scheduler half; None before caches are registered."""
        self.geometry: Geometry | None = None
        self.engine: copy_engine.CopyEngine | None = None
        self._states: StateCopies | None = None
        self._blocks: BlockCopies | None = None
        self._device = torch.device("cpu")
        self._unfenced: str | None = None
        self._no_engine = ""
        """Why there is no copy engine."""
        self._arena: Arena | None = None
        self._pinning: Pinning | None = None
        self._progress: Progress | None = None
        self._maps: list[LayerMap] = []
        self._kv_caches: Mapping[str, torch.Tensor] = {}
        self._tensors: list[list[torch.Tensor]] = []
        """This rank's tensors, by group of the geometry."""
        self._plant = Plant(settings.plant) if settings.plant else None
        self._held: dict[int, StoreEntries] = {}
        """Stores that start with the next step, by job."""
        self._stores: dict[int, int] = {}
        self._loads: dict[int, LoadJob] = {}
        self._results = _Results()
        self._sent: deque[dict[int, list[Outcome]]] = deque(maxlen=versions.STEPS_IN_FLIGHT)
        """The outcomes of stores in the last reports, which may not have arrived yet."""

    # ---- registration

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Reads the geometry out of the registered tensors.

        Raises:
            BudgetError: ``host_gb`` is more than the memory that is free, or there are not enough
                huge pages.
            GeometryError: a tensor does not match its spec.
            UnsupportedError: a kind of cache that the connector does not handle, or a device
                without a driver.
        """
        with together(self._exchange) as exchange:
            self.unregister()
            self._device = copy_engine.cache_device(kv_caches)
            copy_engine.require_driver(self._device)
            self._kv_caches = dict(kv_caches)
            self.geometry, self._maps = read_layout(
                self._config, self._kv_cache_config, self._kv_caches, exchange=exchange
            )
        if self.plan is None:
            with together(self._exchange) as exchange:
                self.plan = planned_geometry(self._config, self._kv_cache_config, exchange)
        if self.plan is None:
            raise GeometryError("KV cache plan: expected strides that fit its specs, found others")
        require_sizes(self.plan, self.geometry)
        self._tensors = [
            [self._kv_caches[name] for name in names]
            for names in layers_here(self._kv_cache_config)
        ]
        self._states = StateCopies(self._tensors)
        self._blocks = BlockCopies(self._tensors, self._kv_cache_config.num_blocks)
        if self._arena is None:
            self._arena = self._make_plane(self.plan)
        self.report = Report(
            self.rank,
            self.plan.to_json(),
            self.geometry.to_json(),
            self._nodes.place,
            self._arena.path,
            self._made,
            (self._arena.slots, self._arena.slot_bytes),
            terms(self.settings),
            self.alone,
            whole_only(self.geometry, self._maps),
        )
        self._results.metadata.reports = [self.report]
        try:
            if self._pinning is None:
                self._pinning = copy_engine.pin(self._device, self._arena, self.rank)
                if self._pinning is not None:
                    nbytes = self._arena.nbytes // self.plan.ranks
                    self._progress = Progress(self.rank, nbytes, self._pinning)
            self.engine = copy_engine.make_engine(
                self._device,
                self.plan,
                self._arena,
                rank=self.rank,
                num_blocks=self._kv_cache_config.num_blocks,
                layers=self._maps,
                threads=self.settings.copy_threads,
                kernel_below=self.settings.kernel_below,
                staging=self.settings.staging_mb << 20,
                batch_copies=self.settings.batch_copies,
                checksums=self.settings.has_checksums,
                owners=self._kv_caches,
                pinning=self._pinning,
            )
        except CudaError as error:
            logger.exception("rank %d stores and loads nothing", self.rank)
            self._no_engine = str(error)
            if self._pinning is None:  # jobs then fail with this error instead of waiting
                self.report.ready = self._arena.slots
        if self._pinning is not None:
            self._pinning.start()

    def handshake(self) -> Report | None:
        """The report with the number of ready slots. All slots of a small budget are ready before
        the first request comes."""
        if self.report is not None and self._pinning is not None:
            self._pinning.wait(_START_WAIT_SECONDS)
            self.report.ready = self._pinning.usable_slots
        return self.report

    def _slots(self, plan: Geometry) -> Slots:
        """The slots of the budget, if this machine has the memory for this rank's part."""
        slots = Slots.of(self.settings.host_gb, plan, nodes=self._nodes.count)
        if not self.settings.huge_pages:
            require_memory(self.settings.host_gb / plan.ranks)
        return slots

    def _make_plane(self, plan: Geometry) -> Arena:
        """This rank's plane. It is kept until the end, since the scheduler knows its contents."""
        slots = self._slots(plan)
        arena = Arena.create(
            plan,
            slot_bytes=slots.slot_bytes,
            slots=slots.count,
            rank=self.rank,
            huge_pages=self.settings.huge_pages or None,
            numa_node=copy_engine.numa_node(self._device),
        )
        if not self.settings.huge_pages:
            require_plane(arena, self.settings.host_gb / plan.ranks)
        for warning in arena.warnings:
            logger.warning("rank %d: %s", self.rank, warning)
        return arena

    def unregister(self) -> None:
        """Ends every copy, and does not use the buffers until :meth:`restore`."""
        if self.engine is not None:
            self._start_held()
            self.engine.close()
            self._collect()
        self.engine, self._no_engine = None, "expected registered KV caches, found none"

    def restore(self) -> None:
        """Takes the buffers again after wake-up."""
        if self._kv_caches:
            self.register(self._kv_caches)

    def _open(self) -> copy_engine.CopyEngine:
        if self.engine is None:
            raise TransferError(self._no_engine)
        return self.engine

    def _ordered(self) -> copy_engine.CopyEngine:
        """The copy engine, whose copies are ordered after what the device has done."""
        if self._unfenced is not None:
            raise TransferError(self._unfenced)
        return self._open()

    # ---- a step

    def begin(self, step: StepMetadata) -> None:
        """Called when a step's blocks are ready, before its forward pass is launched.

        The copies that start with the step wait for the work that the device has now, and not for
        the pass.
        """
        if step.half is not None:
            note_worker(step.half, self)
        if step.block_copies and self._blocks is not None:
            self._blocks.run(step.block_copies)
        if step.loads or self._held:
            self._fence()

    def _fence(self) -> None:
        """Orders the next copies after the work that the device has now. On a CPU there is nothing
        to wait for."""
        before, self._unfenced = self._unfenced, None
        if not isinstance(self.engine, copy_engine.StreamEngine):
            return
        try:
            self.engine.fence()
        except Exception as error:
            self._unfenced = str(error)
            if self._unfenced != before:
                logger.exception("no copy can be ordered after what the device does")

    def start_copies(self, step: StepMetadata) -> None:
        """Starts this step's loads, and the stores that were held for it. A later :meth:`collect`
        returns their results."""
        for job in step.loads:
            if not job.entries and job.rejected is None:
                self._end_load(job, Outcome(self.rank))
                continue
            if self._plant is not None and self.geometry is not None:
                job = self._plant.swapped(job, self.geometry)
            try:
                self._loads[self._submit_load(job)] = job
            except Exception as error:
                logger.exception("load of request %s could not start", job.request)
                reason = "load_plan" if job.rejected else "load_start"
                self._end_load(job, Outcome(self.rank, str(error), reason))
        self._submit_stores()

    def _submit_load(self, job: LoadJob) -> int:
        if job.rejected is not None:
            raise InvalidArgumentError(job.rejected)
        return self._ordered().load(
            [
                (item, slots, blocks, self._expected(checksums))
                for item, slots, blocks, checksums in job.entries
            ]
        )

    def _expected(self, checksums: list[int]) -> int | None:
        if self.settings.checksum != "verify":
            return None
        if not checksums:
            raise TransferError("expected an entry with checksums, found one stored without")
        return checksums[self.rank]

    def take_stores(self, step: StepMetadata) -> None:
        """Takes this step's stores, after its forward pass.

        On a GPU they start with the next step, so that the copy of the step's sampled tokens goes
        first. What they read stays as it is until they are reported, since their blocks are pinned.
        States that the next step overwrites are copied to such blocks now.
        """
        for job, entries in step.stores.items():
            try:
                self._open()
                if self._states is not None:
                    self._states.run(entries.state_copies)
                self._held[job] = entries
            except Exception as error:
                self._refuse_store(job, error)
        if self._stores_end_with_the_step:
            self._start_held()
            self._wait_for_stores()
        elif not isinstance(self.engine, copy_engine.StreamEngine):
            self._start_held()

    def _start_held(self) -> None:
        """Starts the stores that are held, between two steps."""
        if self._held:
            self._fence()
            self._submit_stores()

    def _submit_stores(self) -> None:
        held, self._held = self._held, {}
        for job, entries in held.items():
            try:
                self._stores[self._ordered().store(entries)] = job
            except Exception as error:
                self._refuse_store(job, error)

    def _refuse_store(self, job: int, error: Exception) -> None:
        logger.exception("store %d could not start", job)
        self._end_store(job, Outcome(self.rank, str(error), "store_start"))

    def _wait_for_stores(self) -> None:
        if self.engine is not None:
            for ticket in self._stores:
                self.engine.wait(ticket)

    @property
    def _stores_end_with_the_step(self) -> bool:
        """See :meth:`~hybrid_pages.vllm.config.settings.Settings.stores_in_steps`."""
        return self.settings.stores_in_steps(pinned=self._device.type != "cpu")

    def collect(self, step: StepMetadata | None) -> set[str]:
        """The requests whose loads have ended since the last call, failed ones included."""
        idle = self._waits and step is not None and step.idle
        if idle and self.engine is not None and self._loads:
            self.engine.wait(next(iter(self._loads)), _IDLE_WAIT_SECONDS)
        self._collect()
        received, self._results.received = self._results.received, set()
        return received

    def end_stores(self, more: StepMetadata, *, wait: bool) -> WorkerMetadata:
        """See :class:`~hybrid_pages.vllm.processes.colocation.StoresEnder`."""
        self.take_stores(more)
        self._start_held()
        if wait:
            self._wait_for_stores()
        self._collect()
        stores, self._results.metadata.stores = self._results.metadata.stores, {}
        for sent in self._sent:
            stores |= sent
        # The first report comes with a step's metadata, and may not have arrived.
        return WorkerMetadata(stores=stores, reports=[self.report] if self.report else [])

    def take_metadata(self) -> WorkerMetadata | None:
        """The jobs that have ended since the last call, for the scheduler half."""
        metadata, self._results.metadata = self._results.metadata, WorkerMetadata()
        if self._pinning is not None and self._progress is not None:
            ready = self._progress.more(self._pinning.usable_slots)
            if ready is not None:
                metadata.ready[self.rank] = ready
                metadata.unpinned[self.rank] = self._pinning.unpinned_slots
        news = metadata.stores or metadata.loads or metadata.reports or metadata.ready
        self._sent.append(metadata.stores)
        return metadata if news else None

    def _poll(self) -> list[Completion]:
        return self.engine.poll() if self.engine is not None else []

    def _collect(self) -> None:
        for done in self._poll():
            if (load := self._loads.pop(done.ticket, None)) is not None:
                if self._plant is not None and self.geometry is not None:
                    self._plant.zero(load, self.geometry, self._tensors)
                self._end_load(load, self._outcome(done, "load"))
            elif (job := self._stores.pop(done.ticket, None)) is not None:
                self._end_store(job, self._outcome(done, "store"))

    def _outcome(self, done: Completion, reason: str) -> Outcome:
        if done.ok:
            return Outcome(self.rank, None, "", done.bytes, done.seconds, packed(done.checksums))
        return Outcome(self.rank, done.error or "no reason given", reason)

    def _end_load(self, job: LoadJob, outcome: Outcome) -> None:
        self._results.metadata.loads.setdefault(job.request, []).append(outcome)
        if job.last:
            self._results.received.add(job.request)

    def _end_store(self, job: int, outcome: Outcome) -> None:
        self._results.metadata.stores.setdefault(job, []).append(outcome)

    def shutdown(self) -> None:
        """Ends every copy, unpins memory, and frees this rank's plane."""
        self.unregister()
        pinning, self._pinning, self._arena = self._pinning, None, None
        self._kv_caches, self._tensors, self._states, self._blocks = {}, [], None, None
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if pinning is not None:
            pinning.close()
