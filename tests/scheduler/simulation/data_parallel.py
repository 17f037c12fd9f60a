"""Engine cores of a mixture of experts: vLLM's own `DPEngineCoreProc` loop over simulated workers.

A forward pass of one rank needs one of every other rank, and so does the all-reduce by which they
agree whether to go on. Here each rank's loop runs in a thread, one at a time, in an order that a
seed decides: a rank stops before each pass, each all-reduce, and wherever it looks for input. If
ranks wait at different places and none can go on, a real engine would hang.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any
from unittest import mock

import vllm
from vllm.config import ParallelConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import DPEngineCoreProc, EngineShutdownState
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from .engine import Engine, Result
from .shapes import GDN, Shape

# Before 0.33 the client of an idle engine asks the coordinator to wake the other ranks.
CLIENTS_START_WAVES = vllm.__version__.startswith("0.32.")


class Hang(AssertionError):
    """Ranks wait for each other forever."""


class Ended(SystemExit):
    """Ends a rank's loop."""


class Rank(Engine):
    """One engine core: its requests reach the scheduler by its loop."""

    def __init__(self, group: DataParallel, rank: int, shape: Shape, **options: Any) -> None:
        self.group, self.rank = group, rank
        self.where = "start"
        self.passes = self.dummies = 0
        self.error: BaseException | None = None
        self._go = threading.Semaphore(0)
        super().__init__(shape, data_parallel=(rank, group.size), **options)
        update = self.scheduler.update_from_output

        def update_from_output(output: SchedulerOutput, found: ModelRunnerOutput) -> Any:
            self._received(found)
            outputs = update(output, found)
            self._deliver(outputs)
            return outputs

        self.scheduler.update_from_output = update_from_output
        self.core = Core(self)
        self.thread = threading.Thread(target=self._loop, daemon=True)
        self.thread.start()

    def _submit(self, request: Request) -> None:
        self.group.send(self, request)

    def step(self) -> bool:
        return self.group.step()

    def abort(self, result: Result) -> None:
        """The client went away: seen before the next report, or where the loop looks for input."""
        names = [result.request.request_id]
        if CLIENTS_START_WAVES and names[0] not in self.scheduler.requests:
            return  # an idle rank of 0.32 would not step, and the others wait for it
        if not result.done:
            result.aborted = True
            self.core.aborts_queue.put(names)
            self.core.input_queue.put((EngineCoreRequestType.ABORT, names))

    @property
    def may_be_disturbed(self) -> bool:
        """Whether the loop is where it looks for input, and takes utility calls."""
        return self.where in ("input", "idle")

    # ---- the loop's thread

    def _loop(self) -> None:
        self._go.acquire()
        try:
            self.core.run_busy_loop()
        except Ended:
            pass
        except BaseException as error:
            self.error = error
        self.where = "ended"
        self.group.turn.release()

    def wait(self, where: str) -> None:
        """Gives up the turn until the group comes back to this rank."""
        self.where = where
        self.group.turn.release()
        self._go.acquire()
        if self.group.closed:
            raise Ended
        self.where = "running"

    def go(self) -> None:
        """Runs the loop until it waits again."""
        self._go.release()
        self.group.turn.acquire()
        if self.error is not None:
            raise self.error

    # ---- the workers

    def execute_model(self, output: SchedulerOutput, non_block: bool = False) -> Any:
        if not output.total_num_scheduled_tokens:
            return done(self._execute(output))
        self.wait("forward")
        self.passes += 1
        self._sampled = self._execute(output)
        return done(None)

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        return done(self._sampled) if non_block else self._sampled

    def execute_dummy_batch(self) -> None:
        self.wait("forward")
        self.dummies += 1
        for runner in self.runners:
            runner.dummy()

    is_sleeping = False


def done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Inbox(queue.Queue[Any]):
    """What clients and the coordinator send to a rank; to wait for it is to give up the turn."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and self.empty():
            self._rank.wait("idle")
        return super().get(block=False)


class Core(DPEngineCoreProc):
    """vLLM's loop, without sockets, processes and process groups."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.vllm_config, self.scheduler = rank.config, rank.scheduler
        self.model_executor = rank
        self.structured_output_manager = rank.scheduler.structured_output_manager
        self.input_queue, self.output_queue = Inbox(rank), queue.Queue()
        self.aborts_queue: queue.Queue[Any] = queue.Queue()
        self.batch_queue_size = rank._depth
        self.batch_queue = deque(maxlen=rank._depth) if rank._depth > 1 else None
        self.step_fn = self.step if self.batch_queue is None else self.step_with_batch_queue
        self.async_scheduling = self.batch_queue is not None
        self.check_for_draft_tokens = self.is_pooling_model = self.is_mm_encoder_only = False
        self.log_stats = True
        self.process_input_queue_block = True
        self.has_coordinator, self.publish_dp_lb_stats = True, False
        self.engine_index = self.dp_rank = rank.rank
        self.dp_group: Any = rank
        self.engines_running = self.pending_pause = self.ignore_start_dp_wave = False
        self.enable_fault_tolerance = self.reject_new_requests = False
        self.shutdown_state = EngineShutdownState.RUNNING
        self.step_counter = self.current_wave = 0
        self.prefill_schedule_interval = rank.group.prefill_interval
        self.dp_sync_interval = rank.group.sync_interval
        self.eep_scaling_state = None
        self._idle_state_callbacks: list[Any] = []
        self._weight_version = None

    def _process_input_queue(self) -> None:
        self.rank.wait("input")
        super()._process_input_queue()


class DataParallel:
    """Engine cores that step together, a coordinator and a client.

    Args:
        shape, options: of every engine.
        size: how many ranks.
        seed: decides the order in which ranks run and messages arrive.
        prefill_interval: vLLM's `prefill_schedule_interval`.
        sync_interval: vLLM's `dp_sync_interval`.
    """

    def __init__(
        self,
        shape: Shape = GDN,
        *,
        size: int = 2,
        seed: int = 0,
        prefill_interval: int = 1,
        sync_interval: int = 4,
        **options: Any,
    ) -> None:
        self.size, self.rng = size, random.Random(seed)
        self.prefill_interval, self.sync_interval = prefill_interval, sync_interval
        self.turn, self.closed = threading.Semaphore(0), False
        self.wave, self.running = 0, False
        self._patch = mock.patch.object(
            ParallelConfig, "sync_dp_state", staticmethod(self._all_reduce)
        )
        self._patch.start()
        self._votes: dict[int, tuple[bool, bool]] = {}
        self.ranks: list[Rank] = []
        try:
            for rank in range(size):
                self.ranks.append(Rank(self, rank, shape, **options))
                self.ranks[-1].go()
        except BaseException:
            self.end()
            raise

    # ---- the client and the coordinator

    def send(self, rank: Rank, request: Request) -> None:
        """As `DPAsyncMPClient` and `DPCoordinatorProc` do, on time or late."""
        rank.core.input_queue.put((EngineCoreRequestType.ADD, (request, self.wave)))
        if CLIENTS_START_WAVES and not self.running:
            self._start_wave(rank.rank)

    def _start_wave(self, but: int | None) -> None:
        for rank in self.ranks:
            message = EngineCoreRequestType.START_DP_WAVE, (self.wave, but)
            rank.core.input_queue.put(message)

    def _coordinate(self) -> None:
        for rank in self.ranks:
            while not rank.core.output_queue.empty():
                client, outputs = rank.core.output_queue.get_nowait()
                if client != -1:
                    continue
                if outputs.wave_complete is not None and self.wave <= outputs.wave_complete:
                    self.wave, self.running = outputs.wave_complete + 1, False
                elif outputs.start_wave is not None and (
                    outputs.start_wave > self.wave
                    or (outputs.start_wave == self.wave and not self.running)
                ):
                    self.wave, self.running = outputs.start_wave, True
                    self._start_wave(rank.rank)

    def _all_reduce(
        self, group: Rank, *, has_unfinished: bool, pending_pause: bool
    ) -> tuple[bool, bool]:
        self._votes[group.rank] = has_unfinished, pending_pause
        group.wait("all-reduce")
        unfinished, paused = zip(*self._votes.values(), strict=True)
        return any(unfinished), all(paused)

    # ---- steps

    def step(self) -> bool:
        """Lets one rank, or all that meet, go on; False when all are idle."""
        if self.rng.random() < 0.5:
            self._coordinate()
        free = [
            rank
            for rank in self.ranks
            if rank.where == "input" or (rank.where == "idle" and not rank.core.input_queue.empty())
        ]
        if free:
            self.rng.choice(free).go()
            return True
        places = {rank.where for rank in self.ranks}
        if len(places) == 1 and places <= {"forward", "all-reduce"}:
            for rank in self.rng.sample(self.ranks, self.size):
                rank.go()
            return True
        self._coordinate()
        if any(not rank.core.input_queue.empty() for rank in self.ranks if rank.where == "idle"):
            return True
        if places == {"idle"}:
            return False
        raise Hang(f"ranks wait at {[rank.where for rank in self.ranks]}")

    def run(self, limit: int = 50_000) -> None:
        """Steps until all ranks are idle."""
        for _ in range(limit):
            if not self.step():
                return
        raise Hang(f"still busy after {limit} steps: {[rank.where for rank in self.ranks]}")

    @property
    def paused(self) -> bool:
        """Whether no rank is in a wave."""
        return not any(rank.core.engines_running for rank in self.ranks)

    def check_idle(self) -> None:
        """Nothing is left over on any rank, and every text is right."""
        for rank in self.ranks:
            rank.check_idle()

    def end(self) -> None:
        """Ends the loops and the engines."""
        self.closed = True
        for rank in self.ranks:
            if rank.where != "ended":
                rank._go.release()
            rank.thread.join(60)
            rank.close()
        self._patch.stop()
