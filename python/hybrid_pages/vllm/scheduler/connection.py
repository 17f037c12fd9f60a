"""The cache, stores and loads of the scheduler half, made when the planned geometry is known.

Nothing is published before every rank has reported the same plan and equal tensors.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybrid_pages import Arena, Cache, Disk, Geometry, Mooncake, Remote
from hybrid_pages.adapter.pool import Slots
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.identity import ModelFacts
from hybrid_pages.vllm.config.settings import Settings
from hybrid_pages.vllm.layout.grid import BlockGrid
from hybrid_pages.vllm.messages import Report
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.processes.agreement import Agreement
from hybrid_pages.vllm.processes.engine_cores import ONLY_ONE, EngineCores
from hybrid_pages.vllm.processes.nodes import Nodes, terms
from hybrid_pages.vllm.scheduler.checkpoints import Checkpoints
from hybrid_pages.vllm.scheduler.events import EventGroup, Events
from hybrid_pages.vllm.scheduler.loads.load import Loads
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.loads.restores import Asking
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tenants import TenantNamespaces
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked
from hybrid_pages.vllm.scheduler.spare import Spare
from hybrid_pages.vllm.scheduler.store import StoreJobs
from hybrid_pages.vllm.startup.describe import describe
from hybrid_pages.vllm.versions import logger

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager


@dataclass(frozen=True)
class EngineFacts:
    """Facts about the engine that the scheduler half needs."""

    grid: BlockGrid
    """How vLLM cuts sequences into blocks and hashes."""
    ranks: int
    """Workers: pipeline stages times tensor ranks. An entry is published when all of them have
    copied their shards."""
    plan: Geometry | None = None
    """The planned geometry; None if only the workers know it."""
    stores: bool = True
    """Whether this engine stores, by its ``kv_role``."""
    loads: bool = True
    """Whether this engine loads, by its ``kv_role``."""
    cores: EngineCores = ONLY_ONE
    """The engine cores, of which this is one."""
    nodes: Nodes = field(default_factory=Nodes)
    """The nodes of this engine core."""
    event_groups: Sequence[EventGroup] | None = None
    """All KV cache groups, if the engine publishes KV events."""
    pins: bool = False
    """Whether the workers get their memory ready for a device before it is used."""
    model: ModelFacts | None = None
    """Names entries that outlive the engine; needed with ``disk_path`` and ``remote_url``."""
    ahead: int = 1
    """Steps that the engine plans before it waits for the first of them."""
    stores_in_steps: bool = False
    """Whether the stores of a step end before the worker begins the next one."""
    stages: int = 1
    """Pipeline stages."""


class Connection:
    """One engine's cache, made for the planned geometry, and what vLLM has bound to it.

    Args:
        settings: checked settings.
        engine: facts about the engine.
        closed: called when a panic has closed the cache.

    Raises:
        BudgetError: ``host_gb``, or this one's part of ``disk_gb``, cannot hold one entry of each
            kind.
        DiskError: ``disk_path`` cannot be used, or another engine uses it.
        RemoteError: ``remote_url`` cannot be used.
    """

    geometry: Geometry
    slots: Slots
    arena: Arena | None = None
    """The planes of all ranks, from the time when all have reported; None if they are on several
    nodes."""
    cache: Cache
    namespaces: TenantNamespaces
    checkpoints: Checkpoints
    stores: StoreJobs
    loads: Loads

    def __init__(
        self, settings: Settings, engine: EngineFacts, closed: Callable[[Exception], None]
    ) -> None:
        self.agreement = Agreement(
            engine.ranks,
            engine.plan,
            nodes=engine.nodes,
            terms=terms(settings),
            lasting=settings.lasting,
            stages=engine.stages,
        )
        self._mode = settings.checkpoint_mode
        """Which states the engines that share them make, whether or not this one stores."""
        if not engine.stores:  # no step has to end for a checkpoint
            settings = dataclasses.replace(settings, checkpoint_mode="none", checkpoint_interval=0)
        self.settings, self.cores, self.model = settings, engine.cores, engine.model
        self.nodes = engine.nodes
        self.grid, self.ranks = engine.grid, engine.ranks
        self.disk: Disk | None = None
        self.remote: Remote | Mooncake | None = None
        self.pace: Pace | None = None
        """Measures how fast prompts are computed, if reads are weighed against computing."""
        if settings.remote_url and settings.remote_admit == "auto":
            self.pace = Pace(engine.ahead, engine.grid.block_tokens)
        self.may_store, self.may_load = engine.stores, engine.loads
        self.stores_in_steps = engine.stores_in_steps
        self.requests: dict[str, Tracked] = {}
        """Those that have not ended, by id."""
        self.spare = Spare(engine.grid, self.requests)
        self.figures, self.keys = Figures(engine.grid.block_tokens), Keys(engine.grid)
        self.events: Events | None = None
        self.stored: Callable[[Tracked], None] | None = None
        """Called with each request of which a step stores something, if blocks are announced."""
        self._closed = closed
        self._event_groups = engine.event_groups
        self._ready: dict[int, int] | None = {} if engine.pins else None
        self._unpinned: dict[int, int] = {}
        self.connected = self.stopped = False
        self.serving = False
        """Whether there is a cache and, as far as known, the workers match the plan."""
        self.manager: KVCacheManager | None = None
        self.pool: BlockPool | None = None
        if engine.plan is not None:
            self._connect(engine.plan)

    # ---- start

    def _connect(self, plan: Geometry) -> None:
        self.geometry = plan
        self.slots = Slots.of(self.settings.host_gb, plan, nodes=self.nodes.count)
        settings, cores = self.settings, self.cores
        share = settings.tiers.disk(lane=cores.index, lanes=max(1, cores.here))
        if share is not None:
            slot_bytes = self.slots.slot_bytes
            self.disk = share.open(plan, slot_bytes=slot_bytes, policy=settings.policy)
        store = settings.tiers.remote(writes=self.may_store)
        if store is not None:
            slot_bytes = self.slots.slot_bytes
            self.remote = store.open(plan, slot_bytes=slot_bytes, policy=settings.policy)
        self.cache = self.slots.cache(
            plan,
            policy=settings.policy,
            tenant_share=settings.tenant_share,
            disk=self.disk,
            remote=self.remote,
        )
        self.namespaces = TenantNamespaces(self.cache, apart=settings.tells_tenants_apart)
        if self._ready is not None:
            self.cache.set_ready_slots(0)
        self.checkpoints = Checkpoints(plan, self.cache, self.keys, settings, self.figures)
        self.stores = StoreJobs(
            plan,
            self.cache,
            self.keys,
            settings.checkpoint_mode,
            self.figures,
            self.spare,
            writes=self.may_store,
            in_steps=self.stores_in_steps,
        )
        self.loads = Loads(
            plan,
            self.cache,
            self.keys,
            self.figures,
            wait_seconds=self._wait_seconds(),
            asking=Asking(settings.remote_deadline_ms / 1000, self.pace, self.figures),
            pace=self.pace,
        )
        self.stores.closed, self.stores.pool = self._closed, self.pool
        if self.manager is not None:
            self._give_manager(self.manager)
        self._follow_cache(plan)
        self.connected, self.serving = True, not self.stopped
        logger.info("%s", self.describe())

    def _wait_seconds(self) -> float:
        """How long a request waits for tiers below: as long as the slowest may take."""
        settings = self.settings
        deadlines = {
            settings.disk_path: settings.disk_deadline_ms,
            settings.remote_url: settings.remote_deadline_ms,
        }
        used = [deadline for place, deadline in deadlines.items() if place]
        return max(used, default=settings.disk_deadline_ms) / 1000

    def _follow_cache(self, plan: Geometry) -> None:
        """Begins to announce blocks, if the engine publishes KV events."""
        pages = [item for item in plan.classes if item.kind == "attention"]
        if self._event_groups is not None and pages:
            groups = [self._event_groups[index] for index in pages[0].groups]
            self.events = Events(
                self.cache,
                self.keys,
                groups,
                self.figures,
                self.settings.tells_tenants_apart,
                below=self.disk is not None and self.settings.disk_events,
            )
            self.stored = self.events.note

    def confirm(self, reports: Iterable[Report], *, serving: bool = False) -> None:
        """Takes the ranks' reports: at startup if vLLM hands them over, and with first metadata.

        serving: whether requests are served already, which must not wait for a large disk to open.

        Raises:
            BudgetError: ``host_gb`` cannot hold one entry of each kind.
            GeometryError: a rank's plan differs from the scheduler's, or its tensors from rank 0's.
            UnsupportedError: a rank on a node where it cannot be, with other versions or settings,
                or whose plane can't be opened here.
        """
        reports = list(reports)
        agreed = self.agreement.take(reports)
        if self.agreement.plan is not None and not self.connected:
            self._connect(self.agreement.plan)
        if agreed and self.agreement.geometry is not None:
            self.arena = self.agreement.open_arena(self.slots)
            self.geometry = self.agreement.geometry
            logger.info(
                "hybrid-pages: all %d ranks hold what was planned, fingerprint %s",
                self.ranks,
                self.geometry.fingerprint.hex()[:12],
            )
            if self.arena is not None:
                self._connect_tiers(self.arena, serving)
            self.loads.alone = self.agreement.alone
            self._allow_tails()
        self.got_ready({report.rank: report.ready for report in reports}, {})

    def _allow_tails(self) -> None:
        """Called when all ranks have reported: allows states inside blocks, if every rank knows
        where a token lies in its pages. An engine that only loads resumes from those that others
        store."""
        layer, stores = self.agreement.whole_only, self.stores
        stores.no_tails = self.grid.no_tails or ("" if layer is None else "layout")
        wanted = self.grid.wants_tails(self.geometry, self._mode)
        if layer is not None and wanted:
            logger.info(
                "hybrid-pages: requests resume at multiples of %d tokens only, since it is not "
                "known where a token of layer %r lies in its pages",
                self.grid.block_tokens,
                layer,
            )
        inside = wanted and not stores.no_tails
        self.loads.restores.lookups.inside = inside
        stores_inside = inside and self.may_store
        self.checkpoints.takes_inside = stores_inside and self.grid.keeps_inside
        self.checkpoints.inside = stores_inside and self._mode != "align"

    def _connect_tiers(self, arena: Arena, serving: bool) -> None:
        """Opens the tiers below, if any, with what engines of this identity have left there."""
        if self.model is None:
            return
        identity, about = self.model.identity(self.geometry), self.model.about(self.geometry)
        for kind, tier, place in self._tiers():
            if isinstance(tier, Disk):
                tier.connect(arena, identity, meanwhile=serving)
            else:  # Nothing waits for a store that others share.
                tier.connect(arena, identity)
            if isinstance(tier, Disk) or (isinstance(tier, Remote) and self.may_store):
                tier.describe(about)  # A Mooncake Store keeps values only.
            if isinstance(tier, Disk):
                for note in tier.notes():
                    logger.warning("hybrid-pages: the disk at %s: %s", place, note)
            logger.info(
                "hybrid-pages: the %s at %s serves identity %s (%s)",
                kind,
                place,
                identity.hex()[:12],
                self.model.describe(),
            )

    def _tiers(self) -> Iterator[tuple[str, Disk | Remote | Mooncake, str]]:
        """The tiers below, each with its kind and place for the log."""
        if self.disk is not None:
            yield "disk", self.disk, self.settings.disk_path
        if self.remote is not None:
            yield "remote store", self.remote, self.remote.place

    def got_ready(self, slots: Mapping[int, int], unpinned: Mapping[int, int]) -> None:
        """Takes how many slots each rank has ready, and how many of them it could not pin. Those
        that all ranks have ready may be used."""
        if self._ready is None or self.stopped:
            return
        self._unpinned.update(unpinned)
        for rank, count in slots.items():
            self._ready[rank] = max(count, self._ready.get(rank, 0))
        if self.connected and len(self._ready) == self.ranks:
            self.cache.set_ready_slots(min(self.slots.count, *self._ready.values()))

    @property
    def unpinned_bytes(self) -> float:
        """How much of the memory that is ready could not be pinned, on all ranks together."""
        return sum(self._unpinned.values()) * self.slots.slot_bytes / self.ranks

    def stop(self) -> None:
        """Stores and loads nothing from now on."""
        self.stopped, self.serving = True, False

    def describe(self) -> str:
        """A line with the geometry and what the budget holds."""
        return describe(
            self.geometry,
            self.slots,
            self.grid,
            cores=self.cores,
            nodes=self.nodes,
            host_gb=self.settings.host_gb,
        )

    def take_events(self) -> "Sequence[KVCacheEvent]":
        """The KV events for routers since the last call."""
        return () if self.events is None else self.events.take(self.pool)

    def bind_manager(self, manager: "KVCacheManager") -> None:
        """Takes vLLM's cache manager, which knows a request's blocks."""
        self.manager = self.spare.manager = manager
        if self.connected:
            self._give_manager(manager)

    def _give_manager(self, manager: "KVCacheManager") -> None:
        self.stores.tables = versions.tables_of(manager)
        self.loads.bind(manager)

    def bind_pool(self, pool: "BlockPool") -> None:
        """Takes vLLM's block pool, which pins source blocks while they are copied."""
        self.pool = pool
        if self.connected:
            self.stores.pool = pool

    def ids(self, request_id: str) -> Sequence[Sequence[int]]:
        """The ids of a request's blocks, by group."""
        return () if self.manager is None else self.manager.get_block_ids(request_id)

    def unused(self) -> Sequence[str]:
        """The requests that were loaded and have not run since, if nobody else holds blocks."""
        names = self.loads.unused(self.requests) if self.connected else ()
        if not names or self.pool is None:
            return ()
        held = {block for name in names for ids in self.ids(name) for block in ids if block}
        return names if versions.used_blocks(self.pool) == len(held) else ()

    @property
    def storing(self) -> bool:
        """Whether source blocks are pinned by copies that have not ended."""
        return self.connected and bool(self.stores)
