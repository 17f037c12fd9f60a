"""The scheduler half: vLLM's calls, from the arrival of a request to its end."""

import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.adapter.tiers import close_tier
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.settings import Settings
from hybrid_pages.vllm.layout.grid import Tables
from hybrid_pages.vllm.messages import Report, StepMetadata, WorkerMetadata
from hybrid_pages.vllm.metrics import HybridPagesStats
from hybrid_pages.vllm.processes.colocation import worker_here
from hybrid_pages.vllm.scheduler.connection import Connection, EngineFacts
from hybrid_pages.vllm.scheduler.engine_steps import Steps
from hybrid_pages.vllm.scheduler.loads import checked
from hybrid_pages.vllm.scheduler.loads.early import Early
from hybrid_pages.vllm.scheduler.loads.engine_tails import EngineTails
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.outlook import Outlook
from hybrid_pages.vllm.scheduler.requests.check import CheckRequest, check_of
from hybrid_pages.vllm.scheduler.requests.recording import Recording
from hybrid_pages.vllm.scheduler.requests.tracked import Reload, Tracked
from hybrid_pages.vllm.scheduler.stale.epochs import Epochs
from hybrid_pages.vllm.scheduler.stale.invalid import InvalidBlocks
from hybrid_pages.vllm.versions import logger

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


_STATS_SECONDS = 1.0
"""Seconds between the figures of a busy engine, since gathering them takes time."""


class SchedulerHalf:
    """The connector in the scheduler's process: takes vLLM's calls and follows each request.

    Args:
        settings: checked settings.
        engine: facts about the engine.

    Raises:
        BudgetError: ``host_gb``, or this engine's part of ``disk_gb``, cannot hold one entry of
            each kind.
        DiskError: ``disk_path`` cannot be used, or another engine uses it.
        RemoteError: ``remote_url`` cannot be used.
    """

    def __init__(self, settings: Settings, engine: EngineFacts) -> None:
        self.connection = Connection(settings, engine, closed=self._closed)
        """The engine's cache, with its stores and loads."""
        self.name = uuid.uuid4().hex
        """The name by which a worker in the same process is found."""
        self._no_copies = StepMetadata(self.name)
        self._tiers_by: float | None = None
        """When requests stop waiting for the tiers below to be opened."""
        self.epochs = Epochs(lasting=engine.model is not None)
        self.engine_tails = EngineTails(engine.grid, self.connection.keys, self.epochs.identity)
        self._requests = self.connection.requests
        self._begun: Tracked | None = None
        """A request whose pages vLLM has looked up, in its first turn, until it asks for more."""
        self._arrived: set[str] = set()
        self._early: Early | None = None
        """Asks tiers below before requests have their turn, if there are any."""
        if settings.lasting and engine.loads:
            self._early = Early(self._track_early, self._local, self.connection.figures)
        self._outlook = Outlook(self.connection)
        self._invalid = InvalidBlocks(engine.grid, self.epochs, engine.ahead)
        self._steps = Steps(self.connection, self._requests, self.epochs, self._invalid)
        self._speculates = engine.grid.drafts > 0 and engine.stores
        self._ahead = engine.ahead
        self._frees_left = 0
        """How many more steps without tokens may pass before vLLM has freed the blocks of requests
        that have ended or were preempted."""
        self._figures_from = 0.0
        """When the figures of a busy engine go out next, on the monotonic clock."""
        self._recording: Recording | None = None
        if settings.trace_dir:
            grid = engine.grid
            self._recording = Recording(
                Path(settings.trace_dir), grid.block_tokens, grid.stride, self.connection.figures
            )

    # ---- start

    def bind_manager(self, manager: "KVCacheManager") -> None:
        """Takes vLLM's cache manager, which knows a request's blocks."""
        self.connection.bind_manager(manager)
        versions.leave_out(manager, self._leaves_own)
        versions.offer_pages(manager, self._pages)
        versions.before_resets(manager, self._before_reset)

    def bind_pool(self, pool: "BlockPool") -> None:
        """Takes vLLM's block pool, which pins source blocks while they are copied."""
        self.connection.bind_pool(pool)
        self.engine_tails.bind(pool)
        self.epochs.bind(pool)

    def confirm(self, reports: Iterable[Report], *, serving: bool = False) -> None:
        """Takes the ranks' reports.

        serving: whether requests are served already.

        Raises:
            BudgetError: ``host_gb`` cannot hold one entry of each kind.
            GeometryError: a rank's plan differs from the scheduler's, or its tensors from rank 0's.
            UnsupportedError: a rank on a node where it cannot be, with other versions or settings,
                or whose plane can't be opened here.
        """
        self.connection.confirm(reports, serving=serving)

    # ---- a step, in vLLM's order of calls

    def arrived(self, request: "Request") -> None:
        """Notes a new request, which may wait for its first lookup."""
        if self._rests:
            self._end_stores()  # it may go on from what was stored meanwhile
        self._arrived.add(request.request_id)
        reads = not request.skip_reading_prefix_cache and check_of(request) is None
        if self._early is not None and reads:
            self._early.arrived(request)

    def match(self, request: "Request", local_tokens: int) -> int | None:
        """Tokens that can be loaded beyond ``local_tokens``; None if vLLM is to ask again."""
        self._look_for_panics()
        if not self.connection.serving:
            return 0
        # The engine resets only while no request holds blocks, and asks here before one does.
        if self.epochs.engine_was_reset():
            self._engine_was_reset()
        tracked = self._requests.get(request.request_id)
        waited = tracked is not None and tracked.waits
        if tracked is None:
            if self._awaits_tiers():
                return None
            tracked = self._begin(request)
            self._requests[request.request_id] = tracked
            if self._recording is not None:
                self._recording.arrived(tracked)
            self.connection.checkpoints.arrived(tracked)
        else:
            self.epochs.restarted(tracked, self._keys(tracked))
            tracked.restart()
            if not waited:
                self._name_again(tracked)
        tokens = self._tokens(tracked, local_tokens)
        # The LoRA may have changed while the request waited. A look in every step costs too much.
        if waited and tokens is not None and self._name_again(tracked):
            tokens = self._tokens(tracked, local_tokens)
        tracked.waits = tokens is None
        if tokens is not None:
            self.connection.checkpoints.looked_up(tracked)
            if not tracked.counted:
                self._outlook.came(tracked)
        if (
            self.connection.events is not None and self.connection.settings.lasting
        ):  # there are blocks of other engines
            self.connection.events.note(tracked)
        return tokens

    def _pages(
        self, request: "Request", joint: int, deepest: int, most: int
    ) -> "int | versions.LocalTail":
        """With how many tokens of vLLM's own pages a request begins, see
        :data:`~hybrid_pages.vllm.versions.local_hits.ChoosePages`."""
        try:
            tracked = self._requests.get(request.request_id)
            if tracked is not None:
                tracked.engine_tail = None
            if deepest == joint and not self.engine_tails:
                return joint
            if not self.connection.serving or self._awaits_tiers():
                return joint
            if request.skip_reading_prefix_cache or self._leaves_own(request):
                return joint
            if tracked is None:
                tracked = self._begun = self._begin(request)
            lora = request.lora_request
            tail = None
            if lora is None or not versions.reloads_lora(lora):  # its weights may change meanwhile
                tail = self.engine_tails.find(tracked, joint, deepest, most)
            return self.connection.loads.pages(tracked, joint, deepest, tail)
        except Exception:
            logger.exception("the pages of request %s could not be chosen", request.request_id)
            self.connection.figures.count("failures", label="lookup")
            return joint

    @property
    def takes_pages(self) -> bool:
        """Whether requests may begin with pages of vLLM's own that have no state."""
        return self.connection.serving and self.connection.loads.joint_only is None

    def _tokens(self, tracked: Tracked, local_tokens: int) -> int | None:
        return None if self._awaits_tiers() else self.connection.loads.match(tracked, local_tokens)

    def _begin(self, request: "Request") -> Tracked:
        """Begins to follow a request whose first turn has come."""
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun.request is request:
                return begun
            begun.drop_restore()
            self.connection.namespaces.release(begun.run.namespace)
        early = None if self._early is None else self._early.take(request.request_id)
        if early is None:
            return self._track(request)
        if request.lora_request is not None:
            self._name_again(early)
        return early

    def _track(self, request: "Request") -> Tracked:
        namespace, reload = self._namespace(request, None)
        tracked = Tracked.of(request, namespace, self.connection.keys.none_yet())
        tracked.reload, tracked.skips_loads = reload, not self.connection.may_load
        tracked.check = check_of(request)
        if tracked.check is not None and self.connection.serving:
            self._begin_check(tracked, tracked.check)
        return tracked

    def _begin_check(self, tracked: Tracked, check: CheckRequest) -> None:
        try:
            checked.begin(self.connection.loads, tracked, check)
        except Exception:
            logger.exception("tiers could not give up the prompt of a request of verify")
            self.connection.figures.count("failures", label="lookup")

    def _leaves_own(self, request: "Request") -> bool:
        """Whether vLLM's own prefix cache is to give a request nothing."""
        if request.kv_transfer_params is None or not self.connection.serving:
            return False
        check = check_of(request)
        return check is not None and check.leaves_own

    def _track_early(self, request: "Request") -> Tracked | None:
        """Begins to follow a request before its turn, unless its LoRA may be another one then."""
        lora = request.lora_request
        if lora is not None and versions.reloads_lora(lora):
            return None
        return self._track(request)

    def _local(self, tracked: Tracked, end: int) -> int:
        """How many of the first ``end`` tokens of a request, which holds no blocks, the engine's
        own cache has."""
        if self.connection.manager is None:
            return 0
        joint, deepest = versions.local_tokens(self.connection.manager, tracked.request)
        tail = self.engine_tails.find(tracked, joint, deepest, end)
        if tail is not None and tail.place.tokens == end:
            return end
        return self.connection.loads.pages_before(end, joint, deepest)

    def _ask_early(self, early: Early) -> None:
        """Asks the tiers below for requests that were left waiting, once they are open."""
        if self._awaits_tiers():
            return
        try:
            early.ask(self.connection.loads.restores, self.connection.slots.count)
        except Exception:
            logger.exception("tiers below could not be asked for requests that wait")
            self.connection.figures.count("failures", label="lookup")
            early.drop_waiting()

    def _namespace(self, request: "Request", pending: Reload | None) -> tuple[int, Reload | None]:
        """The namespace of a request, held, and the reload that its LoRA is to have."""
        if request.lora_request is None:
            return self.connection.namespaces.hold(b"", request.cache_salt), None
        reload = self.epochs.reload(request, pending)
        identity = self.epochs.identity(request, reload)
        return self.connection.namespaces.hold(identity, request.cache_salt), reload

    def _name_again(self, tracked: Tracked) -> bool:
        """Finds the namespace of a request anew; says whether it is another one."""
        namespace, reload = self._namespace(tracked.request, tracked.reload)
        changed = namespace != tracked.run.namespace
        if changed:
            tracked.drop_restore()
        self.connection.namespaces.release(tracked.run.namespace)
        tracked.run.namespace, tracked.reload = namespace, reload
        return changed

    def _awaits_tiers(self) -> bool:
        """Whether the first requests wait for the ranks' reports, without which no tier below is
        open. The reports come with the next step, if not at startup."""
        if not self.connection.settings.lasting or self.connection.agreement.geometry is not None:
            return False
        now = time.monotonic()
        self._tiers_by = self._tiers_by or now + self.connection.loads.wait_seconds
        return now < self._tiers_by

    def allocated(self, request: "Request", tables: Tables, external_tokens: int) -> None:
        """Plans the load into the blocks that vLLM gave the request."""
        if self.connection.connected:
            tracked = self._requests.get(request.request_id)
            self.connection.loads.allocated(request, tracked, tables, external_tokens)

    def step(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        """This step's copies, in both directions.

        Each engine step waits for this, with little in the processor's caches, so a usual call does
        nothing but plan stores.
        """
        connection, idle = self.connection, not scheduler_output.total_num_scheduled_tokens
        # A store that meets a panic stops the cache itself.
        if connection.serving and (idle or connection.pace or connection.loads.in_flight):
            self._look_for_panics()
        copies = [(copy[0], copy[1]) for copy in scheduler_output.kv_cache_block_copies or ()]
        if not connection.serving:
            # The cache was stopped: loads between two waves end as failed.
            loads = connection.loads.take_planned() if connection.connected else []
            if loads or copies:
                return StepMetadata(self.name, loads=loads, block_copies=copies)
            return StepMetadata()
        if connection.pace is not None:
            self._note_pace(scheduler_output, connection.pace)
        if self._early is not None and self._early.asks:
            self._ask_early(self._early)
        stores, loads = self._steps.stores(scheduler_output), []
        if connection.loads.in_flight:
            loads = connection.loads.take_planned()
        if connection.stores.unsent:
            stores |= connection.stores.take_unsent()
        if idle:
            self._refuse_parked(scheduler_output)
        elif not (stores or loads or copies):
            return self._no_copies
        return StepMetadata(self.name, stores, loads, copies, idle)

    def _refuse_parked(self, idle: "SchedulerOutput") -> None:
        """Takes back the offer of a load that no block will ever become free for."""
        loads = self.connection.loads
        if not (self._will_free(idle) or self.storing or loads.in_flight):
            loads.parked.refuse(self._requests.values())

    def _will_free(self, idle: "SchedulerOutput") -> bool:
        """Whether vLLM frees blocks after this step. It does when steps in flight are reported,
        also those of requests that have ended or were preempted meanwhile."""
        if idle.finished_req_ids or idle.preempted_req_ids:
            self._frees_left = self._ahead
        if self._frees_left:
            self._frees_left -= 1
            return True
        return any(each.request.num_in_flight_tokens for each in self._requests.values())

    def _note_pace(self, output: "SchedulerOutput", pace: Pace) -> None:
        known = pace.planned(output.total_num_scheduled_tokens, len(output.num_scheduled_tokens))
        if known and pace.tokens_per_second:
            self.connection.cache.set_compute_rate(
                pace.tokens_per_second / self.connection.grid.block_tokens
            )

    def invalid(self, blocks: Iterable[int]) -> None:
        """Called when a step has gone on from blocks that another connector could not load."""
        if not self.connection.connected:
            return
        tables = {request_id: self.connection.ids(request_id) for request_id in self._requests}
        self._invalid.follow(
            blocks, self._requests, tables, self.connection.pool, self.connection.stores
        )

    def reported(self, connector_output: "KVConnectorOutput") -> None:
        """Takes the report of a step: the workers' metadata, and requests that got loads."""
        if connector_output.invalid_block_ids:
            self.invalid(connector_output.invalid_block_ids)
        if self._invalid.waiting:
            self._invalid.updated()
        if self._speculates and self.connection.serving:
            self._steps.reported()
        if connector_output.kv_connector_worker_meta is not None:
            self._ended(connector_output.kv_connector_worker_meta)
        if connector_output.finished_recving and self.connection.connected:
            for request_id in connector_output.finished_recving:
                if self.connection.loads.released(request_id):
                    self._recompute(request_id)

    def _keys(self, tracked: Tracked) -> int | None:
        """How many keys cover what a request has computed in this run."""
        n = self.connection.grid.block_tokens
        position = tracked.run.position
        return None if position is None else position // n * self.connection.grid.stride

    def _ended(self, metadata: Any) -> None:
        """Publishes stores and ends loads that the workers report as ended."""
        if isinstance(metadata, WorkerMetadata):
            self._confirm_or_stop(metadata.reports)
            self._look_for_panics()
            if metadata.ready and not self.connection.stopped:
                self.connection.got_ready(metadata.ready, metadata.unpinned)
            trusted = self.connection.agreement.geometry is not None and not self.connection.stopped
            if metadata.stores:
                self.connection.stores.ended(metadata.stores, trusted=trusted)
            for request_id, outcomes in metadata.loads.items():
                try:
                    self.connection.loads.ended(
                        request_id, self._requests.get(request_id), outcomes
                    )
                except Exception:
                    logger.exception("dropping the failed load of %s failed", request_id)
                    self.connection.figures.count("failures", label="invalidate")
        else:
            logger.error("expected WorkerMetadata, found %s", type(metadata).__name__)
            self.connection.figures.count("failures", label="worker_metadata")

    def _confirm_or_stop(self, reports: Sequence[Report]) -> None:
        """Takes the ranks' reports; stores and loads nothing from now on if they do not agree."""
        if reports and not self.connection.stopped:
            try:
                self.confirm(reports, serving=True)
            except Exception as error:
                self._stop(error)

    def _confirm_here(self) -> None:
        """Takes the report of a worker in this process, if there is none yet: with the metadata of
        a step, it comes after the requests that end with that step."""
        if self.connection.agreement.geometry is None:
            worker = worker_here(self.name)
            if worker is not None and worker.report is not None:
                self._confirm_or_stop([worker.report])

    def _closed(self, error: Exception) -> None:
        """Called when a panic has closed the cache."""
        self._stop(error, "panic")

    def _look_for_panics(self) -> None:
        """Stops using the cache if a panic has closed it."""
        if self.connection.serving and (failure := self.connection.cache.failure()) is not None:
            self._stop(HybridPagesError(failure), "panic")

    def _stop(self, error: Exception, label: str = "geometry") -> None:
        """Stores and loads nothing from now on: the workers are not as planned, or the cache is
        closed. A second time does nothing."""
        if self.connection.stopped:
            return
        self.connection.stop()
        logger.error("hybrid-pages stores and restores nothing in this engine: %s", error)
        self.connection.figures.count("failures", label=label)
        if self.connection.connected:
            self.connection.stores.drop_unsent()
        self._clear()

    def _recompute(self, request_id: str) -> None:
        """Makes a request that was loaded, well or not, begin again without blocks, as
        ``kv_load_failure_policy: recompute`` does."""
        tracked = self._requests.get(request_id)
        if tracked is None:
            return  # it ended meanwhile
        if self.connection.manager is None:
            raise EngineError("expected vLLM's cache manager at start, found none")
        request, tracked.loaded = tracked.request, 0
        self.connection.loads.parked.ended(request_id)
        versions.compute_anew(request, self.connection.manager)
        if not self.connection.agreement.alone:
            # vLLM reserves room for it as for a request under way. If another connector loaded it
            # now, it might wait for its own reservation forever.
            tracked.reads_cache = not request.skip_reading_prefix_cache
            request.skip_reading_prefix_cache = True

    def forget(self, request: "Request", tables: Tables) -> dict[str, Any] | None:
        """Called when a request ended: forgets whatever no copy under way needs.

        Returns:
            What its answer says of it; None for all but those of ``hybrid-pages verify --url``.
        """
        self._confirm_here()
        if self.connection.agreement.alone and worker_here(self.name) is not None:
            # An idle engine does not step, and a step in flight would keep the blocks. Loads of
            # this connector are ordered behind that step.
            versions.free_at_once(request)
        self._arrived.discard(request.request_id)
        if self._early is not None and (early := self._early.take(request.request_id)) is not None:
            early.drop_restore()
            self.connection.namespaces.release(early.run.namespace)
        tracked = self._requests.pop(request.request_id, None)
        told = None if tracked is None else self._told(tracked)
        if tracked is not None:
            self._forget(tracked, tables)
        if self._rests:
            if self.connection.pace is not None:
                self.connection.pace.rested()
            self._end_stores()
        return told

    def _told(self, tracked: Tracked) -> dict[str, Any] | None:
        """What the answer of a request says of it, if anything. Drops what it asks to drop."""
        check, connection = tracked.check, self.connection
        if check is None or not connection.serving:
            return None
        try:
            if check.drop and tracked.request.request_id not in connection.loads.in_flight:
                checked.drop(connection.loads, tracked)
            return checked.told(connection.loads, check, connection.cores)
        except Exception:
            logger.exception("the end of request %s could not be told", tracked.request.request_id)
            connection.figures.count("failures", label="lookup")
            return None

    @property
    def _rests(self) -> bool:
        """Whether there is no request."""
        return not self._requests and not self._arrived

    def _forget(self, tracked: Tracked, tables: Tables) -> None:
        name, failed = tracked.request.request_id, versions.failed(tracked.request)
        tracked.drop_lease()
        tracked.drop_restore()
        if self.connection.connected:
            self.connection.loads.parked.ended(name)
        try:
            unsure = self._invalid.expected
            held = self.connection.ids(name) if tracked.spoiled or unsure else ()
            self._invalid.ended(name, held)
            if not failed and not (unsure and versions.aborted(tracked.request)):
                self.connection.figures.count("hit_tokens", tracked.others, "other")
            self.epochs.ended(tracked, held)
            if failed:
                self.connection.stores.void({name})
            elif self.connection.may_store and self.connection.serving:
                self.connection.stores.finish(tracked, tables)
                self._keep_tail(tracked, tables)
                if self.connection.events is not None:
                    self.connection.events.note(tracked)
        except Exception:
            logger.exception("a store of request %s could not be planned", name)
            self.connection.figures.count("failures", label="store_plan")
        kept = False
        try:
            if self._recording is not None:
                self._recording.finished(tracked)
            self.connection.checkpoints.finished(tracked)
            if not failed and self.connection.serving:
                kept = self._outlook.ended(tracked)
        except Exception:
            logger.exception("the policy was not told the end of %s", name)
            self.connection.figures.count("failures", label="finish")
        if not kept:
            self.connection.namespaces.release(tracked.run.namespace)

    def _keep_tail(self, tracked: Tracked, tables: Tables) -> None:
        """Keeps the tail of an ended request in vLLM's pool if the next prompt is expected to go on
        from there, and the host may not have it by then."""
        wanted = self.connection.checkpoints.keeps_tails
        if not wanted or self.connection.loads.joint_only is not None:
            return
        if tracked.drops or tracked.stale or not tracked.run.stores:
            return
        if self.engine_tails.keep(tracked, tables) and not versions.aborted(tracked.request):
            self.engine_tails.supersede(tracked)

    def _end_stores(self, *, wait: bool = False) -> None:
        """Starts the stores that a step has not taken yet, and publishes those that have ended, if
        the worker is in this process.

        An engine without a loop of its own does not step while it is idle. Its blocks stay pinned
        until it is used again. With ``wait``, all stores end first: with a pinned block it could
        neither be reset nor sleep.
        """
        if self.connection.ranks != 1 or not self.storing or self._invalid.expected:
            return
        worker = worker_here(self.name)
        if worker is None:
            return
        try:
            step = StepMetadata(half=self.name, stores=self.connection.stores.take_unsent())
            ended = worker.end_stores(step, wait=wait)
            ended.stores = self.connection.stores.ahead_of_reports(ended.stores)
            self._ended(ended)
        except Exception:
            logger.exception("the stores of an idle engine could not be ended")
            self.connection.figures.count("failures", label="settle")

    def shutdown(self) -> None:
        """Ends all stores, the recording, and the use of the tiers below, if there are any."""
        self._end_stores(wait=True)
        if self._recording is not None:
            self._recording.close()
        self._outlook.close()
        self._tell(close_tier(self.connection.disk), close_tier(self.connection.remote))

    def reset(self) -> None:
        """Forgets every page and checkpoint; copies under way end unpublished.

        Nothing that the engine has computed until now is published later either.
        """
        loading = self.connection.loads.in_flight if self.connection.connected else ()
        if self.epochs.reset(self._requests.values(), loading):
            logger.warning(
                "vLLM has not emptied its own prefix cache, since blocks are in use: requests that "
                "go on from it are not stored (counted as skipped_entries, stale)"
            )
        self._clear()

    def _before_reset(self) -> None:
        """Lets go of blocks that vLLM does not take back itself: those of stores, and, where nobody
        else holds any, of requests that were loaded and have not run. These are computed anew."""
        self._end_stores(wait=True)
        for name in self.connection.unused():
            self._requests[name].refused = True  # vLLM would reserve room for it twice
            self._recompute(name)

    def _clear(self) -> None:
        for tracked in self._requests.values():
            tracked.drop_lease()
            tracked.drop_restore()
        if self._early is not None:
            self._early.give_back()
        self._outlook.forget()
        if self.connection.connected:
            self.connection.cache.clear()
            self.connection.checkpoints.forget()
            self.engine_tails.clear()
            self.connection.stores.turns.forget()

    def _engine_was_reset(self) -> None:
        """Forgets as the engine has, if the settings say so."""
        if self.connection.settings.follow_engine_resets:
            logger.info(
                "vLLM has reset its prefix cache, so hybrid-pages is reset too "
                "(follow_engine_resets)"
            )
            self._clear()

    @property
    def copying(self) -> bool:
        """Whether there are copies that have not ended."""
        connection = self.connection
        return self.storing or (connection.connected and bool(connection.loads.in_flight))

    @property
    def storing(self) -> bool:
        """Whether source blocks are pinned by copies that have not ended."""
        return self.connection.storing

    def take_events(self) -> "Sequence[KVCacheEvent]":
        """The KV events for routers since the last call."""
        return self.connection.take_events()

    # ---- figures

    def step_stats(self) -> HybridPagesStats | None:
        """The figures that go out with this step: those of a busy engine at intervals, those of one
        that has come to rest at once."""
        now, busy = time.monotonic(), not self._rests or self.storing
        if busy and now < self._figures_from:
            return None
        figures = self.take_stats()
        if busy or figures is not None:
            self._figures_from = now + _STATS_SECONDS
        return figures

    def stats(self) -> dict[str, dict[str, float]]:
        """Counters since the start and gauges of now; takes nothing from :meth:`take_stats`."""
        self._observe()
        return self.connection.figures.snapshot()

    def take_stats(self) -> HybridPagesStats | None:
        """Counters since they were last taken and gauges of now; None if nothing was counted."""
        if self.connection.connected:
            self.connection.stores.count()
        if not self.connection.figures.interval:
            return None
        self._observe()
        return self.connection.figures.take()

    def _observe(self) -> None:
        if not self.connection.connected:
            return
        self.connection.stores.count()
        self._outlook.observe()
        self.connection.figures.observe(
            self.connection.cache.stats(), self.connection.unpinned_bytes
        )
        tiers = {str(tier["name"]): tier for tier in self.connection.cache.tiers()}
        if self.connection.disk is not None:
            self.connection.figures.observe_disk(self.connection.disk, tiers["disk"])
            self._tell(self.connection.disk.notes(), ())
        if self.connection.remote is not None:
            rate = None if self.connection.pace is None else self.connection.pace.tokens_per_second
            self.connection.figures.observe_remote(
                self.connection.remote, tiers["remote"], self.connection.cache.restores(), rate
            )
            self._tell((), self.connection.remote.notes())

    def _tell(self, disk: Iterable[str], remote: Iterable[str]) -> None:
        """Logs what the tiers below say."""
        for note in disk:
            logger.warning(
                "hybrid-pages: the disk at %s: %s", self.connection.settings.disk_path, note
            )
        for note in remote:
            logger.warning("hybrid-pages: %s", note)
