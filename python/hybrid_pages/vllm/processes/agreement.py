"""Checks that all ranks have the same geometry, before anything is published.

The scheduler half makes a cache for the planned geometry. Each rank plans for itself, makes its
plane of the arena, reads its tensors, and reports all three. The planes of the scheduler's own node
must be open to it; it does without those of other nodes, whose slots it knows by number.
"""

from collections.abc import Iterable, Mapping

from hybrid_pages import Arena, Geometry, GeometryError, HybridPagesError
from hybrid_pages.adapter.pool import Slots
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.messages import Report
from hybrid_pages.vllm.processes.nodes import Nodes, no_tiers_below


class Agreement:
    """Compares the ranks' reports with the scheduler's plan and with each other.

    Args:
        ranks: number of workers: pipeline stages times tensor ranks.
        plan: the scheduler's planned geometry; None if only the workers know it.
        nodes: of the engine.
        terms: versions and settings that all ranks must have in common.
        lasting: the setting by which there is a tier below the host; empty if there is none.
        stages: number of pipeline stages.
    """

    def __init__(
        self,
        ranks: int,
        plan: Geometry | None = None,
        *,
        nodes: Nodes,
        terms: Mapping[str, str],
        lasting: str = "",
        stages: int = 1,
    ) -> None:
        self.ranks, self.plan, self.stages = ranks, plan, stages
        self._nodes, self._terms, self._lasting = nodes, terms, lasting
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
            UnsupportedError: a rank on a node where it cannot be, or with other versions or
                settings.
        """
        news = [report for report in reports if report != self.reports.get(report.rank)]
        for report in news:
            name = self.name(report.rank)
            self._require_place(report)
            self._require_terms(report)
            if not 0 <= report.rank < self.ranks:
                raise GeometryError(f"ranks: expected 0 to {self.ranks - 1}, found {report.rank}")
            plan = Geometry.from_json(report.plan)
            if self.plan is None:
                self.plan = plan
            elif difference := self.plan.difference(plan):
                raise GeometryError(f"{name} plans another cache than the scheduler: {difference}")
            before = self.reports.get(report.rank, report)
            if before.made != report.made:
                raise GeometryError(
                    f"{name}: expected its plane of the arena at {before.plane} "
                    f"({before.place}), found another one at {report.plane} ({report.place}): what "
                    "was stored is gone"
                )
            self.reports[report.rank] = report
        return bool(news) and self._compare()

    def name(self, rank: int) -> str:
        """A rank for messages: with several pipeline stages, with its stage and its tensor rank."""
        if self.stages == 1:
            return f"rank {rank}"
        stage, tensor_rank = divmod(rank, self.ranks // self.stages)
        return f"rank {rank} (pipeline stage {stage}, tensor rank {tensor_rank})"

    def require_all(self) -> None:
        """Rejects an engine of which some rank has not reported.

        Raises:
            UnsupportedError: names these ranks.
        """
        missing = [rank for rank in range(self.ranks) if rank not in self.reports]
        if missing:
            raise UnsupportedError(
                f"ranks: expected reports of all {self.ranks}, found none of "
                f"{', '.join(map(str, missing))}: give every node the same --kv-transfer-config"
            )

    def open_arena(self, slots: Slots) -> Arena | None:
        """Opens the planes of all ranks, each of which must have these slots.

        Returns:
            None if some of them are on other nodes.

        Raises:
            UnsupportedError: a plane of this node cannot be opened here, or one has other slots;
                names it and its rank.
        """
        if self.plan is None:
            raise GeometryError("expected a plan before the arena, found none")
        here = []
        for rank, report in sorted(self.reports.items()):
            if not self._nodes.is_elsewhere(report.place):
                self._open(report, self.plan)
                here.append(report.plane)
            count, slot_bytes = report.slots
            if (count, slot_bytes) != (slots.count, slots.slot_bytes):
                raise UnsupportedError(
                    f"{self.name(rank)} ({report.place}): expected a plane of {slots.count} slots "
                    f"of {slots.slot_bytes} bytes, found {count} of {slot_bytes}: give scheduler "
                    "and workers, on each node, the same host_gb, as a number"
                )
        return Arena.open(here, self.plan) if len(here) == self.ranks else None

    def _open(self, report: Report, plan: Geometry) -> None:
        try:
            plane = Arena.open(report.plane, plan)
        except HybridPagesError as error:
            raise _invisible(self.name(report.rank), str(error)) from error
        if plane.ranks != [report.rank]:  # in another container the path is another process's
            found = f"the plane of rank {plane.ranks[0]} at {report.plane}"
            raise _invisible(self.name(report.rank), found)

    def _require_place(self, report: Report) -> None:
        try:
            elsewhere = self._nodes.is_elsewhere(report.place)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.name(report.rank)}: {error}") from None
        if elsewhere and self._lasting:
            reason = no_tiers_below(f"{self.name(report.rank)} elsewhere ({report.place})")
            raise UnsupportedError(f"{self._lasting}: {reason}")

    def _require_terms(self, report: Report) -> None:
        for name in {**self._terms, **report.terms}:
            expected, found = (each.get(name, "nothing") for each in (self._terms, report.terms))
            if expected != found:
                raise UnsupportedError(
                    f"{self.name(report.rank)} ({report.place}): {name}: expected {expected} as "
                    f"vLLM's scheduler has it, found {found}: give all nodes the same packages and "
                    "the same --kv-transfer-config"
                )

    def _compare(self) -> bool:
        found = {rank: Geometry.from_json(report.geometry) for rank, report in self.reports.items()}
        for rank, geometry in found.items():
            first = min(found)
            if difference := found[first].difference(geometry):
                raise GeometryError(
                    f"{self.name(rank)} differs from {self.name(first)}: {difference}"
                )
        if len(found) < self.ranks or self.geometry is not None:
            return False
        self.geometry = found[0]
        return True


def _invisible(rank: str, found: str) -> UnsupportedError:
    return UnsupportedError(
        f"{rank}: expected its host memory to be visible to vLLM's scheduler, found {found}: "
        "run an engine's scheduler and workers in one container and as one user (containers of one "
        "pod: with a shared process namespace), or give each container a --node-rank of its own"
    )
