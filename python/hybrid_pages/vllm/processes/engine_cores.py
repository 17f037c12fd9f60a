"""Engine cores: under data parallelism there are several, each with a cache of its own.

Each has its own scheduler, workers, connector and arena, and shares nothing with the others. The
engine cores of a dense model do not know of each other: vLLM sets their ``data_parallel_size`` to 1
before it makes anything (``ParallelConfig.reconfigure_for_independent_dp_rank``). The process that
starts them therefore counts them.
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
    """The index of this engine core, from 0: the label ``engine`` of its metrics."""
    total: int = 1
    here: int = 1
    """How many engine cores one process has started on this machine, this one included."""

    @classmethod
    def started_by(cls, parallel: "ParallelConfig") -> "EngineCores":
        """The engine cores that a process with this configuration starts.

        There are none on this machine if the process only serves requests.
        """
        total = parallel.data_parallel_size
        here = parallel.data_parallel_size_local if total > 1 else 1
        return cls(0, total, 0 if versions.only_serves(parallel) else here)

    @classmethod
    def of(cls, parallel: "ParallelConfig") -> "EngineCores":
        """The engine cores that :meth:`note` has stored in the configuration."""
        noted = versions.noted_engine_cores(parallel)
        cores = cls.started_by(parallel)
        total, here = noted or (cores.total, cores.here)
        return cls(parallel.data_parallel_index, total, here)

    def note(self, parallel: "ParallelConfig") -> None:
        """Stores the counts in a configuration that engine cores will get, if there are several."""
        if self.total > 1:
            versions.note_engine_cores(parallel, self.total, self.here)

    def describe(self, host_gb: float) -> str:
        """A text with the index and the memory for all engine cores; empty if there is one only."""
        if self.total == 1:
            return ""
        return (
            f"engine core {self.index} (of {self.total}, from 0 on), this machine needs "
            f"{self.here} x {host_gb:g} GiB = {self.here * host_gb:g} GiB"
        )


ONLY_ONE = EngineCores()
"""The only engine core, without data parallelism."""
