"""vLLM's own OffloadingConnector over a worker that moves nothing and is done at once.

Where only a scheduler is measured, no bytes matter: manager, policy and all of the scheduler's side
stay vLLM's, in every version.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class InstantOffloadingSpec(CPUOffloadingSpec):
    """vLLM's CPU offloading spec on any machine."""

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        return InstantWorker()


class InstantWorker(OffloadingWorker):
    """Says of every job that it has ended."""

    def __init__(self) -> None:
        self._ended: list[TransferResult] = []

    def submit_store(self, job_id: int, *_: Any, **__: Any) -> bool:
        self._ended.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id: int, *_: Any, **__: Any) -> bool:
        self._ended.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever on its way."""
