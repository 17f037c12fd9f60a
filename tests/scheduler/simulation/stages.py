"""Pipeline stages: which layers each worker has, how workers hear of each other's, and how far the
later stages are behind."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.geometry import planned_geometry, read_layout

if TYPE_CHECKING:
    from .engine import Engine


def specs_of(specs: dict[str, KVCacheSpec], split: Sequence[int], stage: int) -> dict[str, Any]:
    """The layers of a stage; ``split`` has the stage of each layer."""
    named = zip(specs.items(), split, strict=True)
    return {name: spec for (name, spec), of in named if of == stage}


class _Told(Exception):
    """A stage has told what it has."""


def _texts(config: VllmConfig, plan: KVCacheConfig, tensors: Any) -> list[str]:
    """What a worker tells the other stages: of its plan, and of its tensors."""
    texts: list[str] = []

    def tell(text: str) -> list[str]:
        texts.append(text)
        raise _Told

    with suppress(_Told):
        planned_geometry(config, plan, tell)
    with suppress(_Told):
        read_layout(config, plan, tensors, exchange=tell)
    return texts


@contextmanager
def in_touch(config: VllmConfig, workers: Sequence[tuple[KVCacheConfig, Any]]) -> Iterator[None]:
    """Workers that are made one after another hear of each other.

    workers: of each stage, one's plan and tensors.
    """
    if not workers:
        yield
        return
    told = list(zip(*(_texts(config, *worker) for worker in workers), strict=True))

    def of_all_stages(text: str, stages: int) -> list[str]:
        assert stages == len(workers)
        return list(next(texts for texts in told if text in texts))

    with mock.patch.object(versions, "of_all_stages", of_all_stages):
        yield


@dataclass
class Work:
    """A step on its way through the stages."""

    message: bytes
    """The scheduler's output, as it was when the step was planned."""
    copied: list[tuple[int, int]]
    results: dict[int, ModelRunnerOutput] = field(default_factory=dict)
    """By rank."""


class Pipeline:
    """Runs each step on the first stage when it is planned, on each later one a step later, and on
    all of them before it is reported."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._of_stage = len(engine.runners) // engine.stages
        self._behind: list[deque[Work]] = [deque() for _ in range(engine.stages)]

    @property
    def in_step(self) -> bool:
        """Whether every stage has run every step."""
        return not any(self._behind)

    def plan(self, output: SchedulerOutput, copied: list[tuple[int, int]]) -> Work:
        """Begins a step."""
        work = Work(pickle.dumps(output), copied)
        for behind, works in enumerate(self._behind):
            works.append(work)
            while len(works) > behind:
                self._run(behind)
        return work

    def finish(self, work: Work) -> list[ModelRunnerOutput]:
        """The outputs of all ranks for a step."""
        for stage in range(len(self._behind)):
            while len(work.results) < (stage + 1) * self._of_stage:
                self._run(stage)
        return [work.results[rank] for rank in range(len(self._engine.runners))]

    def _run(self, stage: int) -> None:
        work, first = self._behind[stage].popleft(), stage * self._of_stage
        for runner in self._engine.runners[first : first + self._of_stage]:
            work.results[runner.rank] = self._engine.run_step(
                runner, pickle.loads(work.message), work.copied
            )
