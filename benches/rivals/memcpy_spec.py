"""vLLM's own OffloadingConnector with no GPU: the rival that engine_overhead.py measures.

vLLM's `CPUOffloadingSpec` refuses the CPU platform, in `get_worker` alone. This spec overrides that
method; scheduler side, manager and policy stay vLLM's. The copies run on one thread per
direction, in order of submission, as vLLM's own run on one chain of CUDA streams per direction:

    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
     "kv_connector_extra_config": {"spec_name": "MemcpyOffloadingSpec",
                                   "spec_module_path": "memcpy_spec",
                                   "cpu_bytes_to_use": 268435456}}

with this file's directory on PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class MemcpyOffloadingSpec(CPUOffloadingSpec):
    """vLLM's CPU offloading spec with a worker that copies with memmove."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self.blocks_per_chunk != 1:
            raise ValueError(
                f"expected one block a chunk, found {self.blocks_per_chunk}; "
                "leave blocks_per_chunk and block_size out of kv_connector_extra_config"
            )
        # Written once here, so that no measured store pays for the first touch of a page:
        # vLLM's own host memory is pinned, hence resident, from the start.
        host = [
            torch.empty((self.num_chunks, t.page_size_bytes), dtype=torch.int8).fill_(0)
            for t in kv_caches.tensors
        ]
        return MemcpyWorker(kv_caches, host)


class MemcpyWorker(OffloadingWorker):
    """Copies the unpadded bytes of each (block, layer), as vLLM's own worker does.

    host: of each of the engine's tensors, bytes of shape (chunks, page).
    """

    def __init__(self, kv_caches: CanonicalKVCaches, host: list[torch.Tensor]) -> None:
        self._refs = kv_caches.group_data_refs
        self._engine = [t.tensor for t in kv_caches.tensors]
        self._host = host
        self._stores = ThreadPoolExecutor(1, "rival-store")
        self._loads = ThreadPoolExecutor(1, "rival-load")
        self._jobs: dict[int, Future[TransferResult]] = {}

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        plan = self._plan(src_spec, dst_spec, store=True)
        self._jobs[job_id] = self._stores.submit(_copy, job_id, *plan)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        plan = self._plan(dst_spec, src_spec, store=False)
        self._jobs[job_id] = self._loads.submit(_copy, job_id, *plan)
        return True

    def get_finished(self) -> list[TransferResult]:
        done = [job_id for job_id, job in self._jobs.items() if job.done()]
        return [self._jobs.pop(job_id).result() for job_id in done]

    def wait(self, job_ids: set[int]) -> None:
        wait([self._jobs[job_id] for job_id in job_ids if job_id in self._jobs])

    def shutdown(self) -> None:
        self._stores.shutdown()
        self._loads.shutdown()

    def _plan(
        self, engine: GPULoadStoreSpec, host: LoadStoreSpec, *, store: bool
    ) -> tuple[list[int], list[int], list[int]]:
        """Source addresses, destination addresses and lengths: one for each (block, layer)."""
        if not isinstance(host, BlockIDsLoadStoreSpec):
            raise TypeError(f"expected host chunks by id, found {type(host).__name__}")
        engine_parts, host_parts, lengths = [], [], []
        start = 0
        for refs, size in zip(self._refs, engine.group_sizes, strict=True):
            blocks = engine.block_ids[start : start + size].astype(np.int64)
            chunks = host.block_ids[start : start + size].astype(np.int64)
            start += size
            for ref in refs:
                engine_parts.append(_rows(self._engine[ref.tensor_idx], blocks))
                host_parts.append(_rows(self._host[ref.tensor_idx], chunks))
                lengths += [ref.page_size_bytes] * size
        ours, theirs = np.concatenate(engine_parts).tolist(), np.concatenate(host_parts).tolist()
        return (ours, theirs, lengths) if store else (theirs, ours, lengths)


def _rows(tensor: torch.Tensor, rows: np.ndarray) -> np.ndarray:
    return tensor.data_ptr() + rows * (tensor.stride(0) * tensor.element_size())


def _copy(
    job_id: int, sources: list[int], destinations: list[int], lengths: list[int]
) -> TransferResult:
    started = time.perf_counter()
    for source, destination, length in zip(sources, destinations, lengths, strict=True):
        ctypes.memmove(destination, source, length)
    return TransferResult(job_id, True, sum(lengths), time.perf_counter() - started)
