"""vLLM's own tiers with no GPU: the rival that disk_ttft.py measures.

`TieringOffloadingSpec` keeps chunks in host memory and copies them to secondary tiers, of which
`fs` is one. As in memcpy_spec.py, only `get_worker` is overridden; manager, tiers, their threads
and the C code that reads and writes files are vLLM's:

    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
     "kv_connector_extra_config": {"spec_name": "MemcpyTieringSpec",
                                   "spec_module_path": "memcpy_tiering_spec",
                                   "cpu_bytes_to_use": 268435456,
                                   "secondary_tiers": [{"type": "fs", "root_dir": "/some/where"}]}}
"""

from __future__ import annotations

from memcpy_spec import MemcpyWorker
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class MemcpyTieringSpec(TieringOffloadingSpec):
    """vLLM's tiers over a worker that copies with memmove."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self.blocks_per_chunk != 1:
            raise ValueError(
                f"expected one block a chunk, found {self.blocks_per_chunk}; "
                "leave blocks_per_chunk and block_size out of kv_connector_extra_config"
            )
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return _RegionWorker(kv_caches, region)


class _RegionWorker(MemcpyWorker):
    """Copies to and from the memory that the tiers read and write."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        pages = [tensor.page_size_bytes for tensor in kv_caches.tensors]
        super().__init__(kv_caches, [region.create_next_worker_view(page) for page in pages])
        self._region = region

    def shutdown(self) -> None:
        super().shutdown()
        self._host.clear()
        self._region.cleanup()
