"""Engine cores: under data parallelism there are several, each with a cache of its own.

Each has its own scheduler, workers, connector and arena, and shares nothing with the others. A
dense model's engine cores do not even know of each other: vLLM sets their ``data_parallel_size`` to
1 before it makes anything (``ParallelConfig.reconfigure_for_independent_dp_rank``). So the process
that starts them counts them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybrid_pages.vllm import versions

if TYPE_CHECKING:
    from vllm.config import ParallelConfig


@dataclass(frozen=True)
class EngineCores:
    """How many engine cores there are, and which one this is."""

    index: int = 0
    """This one, from 0: the label ``engine`` of its metrics."""
    total: int = 1
    here: int = 1
    """How many the process that starts this one starts on this machine."""

    @classmethod
    def started_by(cls, parallel: "ParallelConfig") -> "EngineCores":
        """Those that a process with this configuration starts. None on this machine if it only
        serves requests."""
        total = parallel.data_parallel_size
        here = parallel.data_parallel_size_local if total > 1 else 1
        return cls(0, total, 0 if versions.only_serves(parallel) else here)

    @classmethod
    def of(cls, parallel: "ParallelConfig") -> "EngineCores":
        """Those beside the engine core of this process, as :meth:`note` has noted them."""
        noted = versions.noted_engine_cores(parallel)
        cores = cls.started_by(parallel)
        total, here = noted or (cores.total, cores.here)
        return cls(parallel.data_parallel_index, total, here)

    def note(self, parallel: "ParallelConfig") -> None:
        """Notes them for the engine cores, which get this configuration, if there are several."""
        if self.total > 1:
            versions.note_engine_cores(parallel, self.total, self.here)

    def describe(self, host_gb: float) -> str:
        """Which one this is, and what the machine needs for all; empty for the only one."""
        if self.total == 1:
            return ""
        return (
            f"engine core {self.index} (of {self.total}, from 0 on), this machine needs "
            f"{self.here} x {host_gb:g} GiB = {self.here * host_gb:g} GiB"
        )


ONLY_ONE = EngineCores()
"""Without data parallelism."""
