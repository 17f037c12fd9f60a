"""Checks that all ranks have the same geometry, before anything is published.

The scheduler half makes a cache for the planned geometry. Each rank plans for itself, makes its
plane of the arena, reads its tensors, and reports all three.
"""

from collections.abc import Iterable

from hybrid_pages import Arena, Geometry, GeometryError, HybridPagesError
from hybrid_pages.adapter.pool import Slots
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.messages import Report
from hybrid_pages.vllm.processes.colocation import boot_id, require_machine


class Agreement:
    """Compares the ranks' reports with the scheduler's plan and with each other.

    Args:
        ranks: number of tensor-parallel workers.
        plan: the scheduler's planned geometry; None if only the workers know it.
    """

    def __init__(self, ranks: int, plan: Geometry | None = None) -> None:
        self.ranks, self.plan = ranks, plan
        self.reports: dict[int, Report] = {}
        """The last report of each rank."""
        self.geometry: Geometry | None = None
        """The geometry found in the tensors of all ranks; None before all have reported it."""

    @property
    def alone(self) -> bool:
        """Whether the reports make it certain that there is no other connector."""
        return all(report.alone for report in self.reports.values())

    @property
    def whole_only(self) -> str | None:
        """A layer whose pages some rank can only store whole; None if there is none."""
        layers = (report.whole_only for report in self.reports.values())
        return next((layer for layer in layers if layer is not None), None)

    def take(self, reports: Iterable[Report]) -> bool:
        """Takes reports, and the plan from the first one if the scheduler has none.

        Returns:
            Whether this call has completed the agreement of all ranks.

        Raises:
            GeometryError: a rank's plan differs from the scheduler's, or its tensors from rank 0's.
            UnsupportedError: a rank on another machine.
        """
        news = [report for report in reports if report != self.reports.get(report.rank)]
        for report in news:
            require_machine(f"rank {report.rank}", boot_id(), report.machine)
            if not 0 <= report.rank < self.ranks:
                raise GeometryError(f"ranks: expected 0 to {self.ranks - 1}, found {report.rank}")
            plan = Geometry.from_json(report.plan)
            if self.plan is None:
                self.plan = plan
            elif difference := self.plan.difference(plan):
                raise GeometryError(
                    f"rank {report.rank} plans another cache than the scheduler: {difference}"
                )
            before = self.reports.get(report.rank, report)
            if before.plane != report.plane:
                raise GeometryError(
                    f"rank {report.rank}: expected its plane of the arena at {before.plane}, found "
                    f"it at {report.plane}: what was stored is gone"
                )
            self.reports[report.rank] = report
        return bool(news) and self._compare()

    def open_arena(self, slots: Slots) -> Arena:
        """Opens the planes of all ranks, each of which must have these slots.

        Raises:
            UnsupportedError: this process cannot open a plane; names it and its rank.
        """
        if self.plan is None:
            raise GeometryError("expected a plan before the arena, found none")
        for rank, report in sorted(self.reports.items()):
            try:
                plane = Arena.open(report.plane, self.plan)
            except HybridPagesError as error:
                raise _invisible(rank, str(error)) from error
            if plane.ranks != [rank]:  # in another container the path is another process's
                raise _invisible(rank, f"the plane of rank {plane.ranks[0]} at {report.plane}")
            if (plane.slots, plane.slot_bytes) != (slots.count, slots.slot_bytes):
                raise UnsupportedError(
                    f"rank {rank}: expected a plane of {slots.count} slots of {slots.slot_bytes} "
                    f"bytes, found {plane.slots} of {plane.slot_bytes}: give scheduler and workers "
                    "the same host_gb, as a number"
                )
        return Arena.open([report.plane for report in self.reports.values()], self.plan)

    def _compare(self) -> bool:
        found = {rank: Geometry.from_json(report.geometry) for rank, report in self.reports.items()}
        for rank, geometry in found.items():
            first = min(found)
            if difference := found[first].difference(geometry):
                raise GeometryError(f"rank {rank} differs from rank {first}: {difference}")
        if len(found) < self.ranks or self.geometry is not None:
            return False
        self.geometry = found[0]
        return True


def _invisible(rank: int, found: str) -> UnsupportedError:
    return UnsupportedError(
        f"rank {rank}: expected its host memory to be visible to vLLM's scheduler, found {found}: "
        "run an engine's scheduler and workers in one container and as one user (containers of one "
        "pod: with a shared process namespace)"
    )
