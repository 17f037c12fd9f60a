"""Planted faults: restored entries are spoiled after all checks.

They show that `hybrid-pages verify` can fail. Only that command can turn them on: see
:data:`~hybrid_pages.vllm.config.settings.PLANT_VARIABLE`.
"""

from collections.abc import Sequence

import torch

from hybrid_pages import Geometry
from hybrid_pages.vllm.messages import LoadEntry, LoadJob
from hybrid_pages.vllm.versions import logger


class Plant:
    """A kind of fault that is planted in every load of this rank.

    Args:
        kind: ``zero-state`` or ``swap-pages``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        logger.warning(
            "hybrid-pages: PLANTED FAULT %s: ANSWERS WILL BE WRONG. This engine serves "
            "`hybrid-pages verify` alone",
            kind,
        )

    def swapped(self, job: LoadJob, geometry: Geometry) -> LoadJob:
        """Exchanges the blocks of a load's first and last page.

        The bytes are as they were stored, so checksums are right. Loads of one page do not change.
        """
        if self._kind != "swap-pages":
            return job
        entries, pages = list(job.entries), _of_kind(job, geometry, "attention")
        if len(pages) < 2:
            pages = _of_kind(job, geometry, "window")
        if len(pages) < 2:
            return job
        first, last = pages[0], pages[-1]
        entries[first] = _with_blocks(job.entries[first], job.entries[last])
        entries[last] = _with_blocks(job.entries[last], job.entries[first])
        logger.warning("hybrid-pages: PLANTED FAULT: pages swapped for request %s", job.request)
        return job._replace(entries=entries)

    def zero(
        self, job: LoadJob, geometry: Geometry, tensors: Sequence[Sequence[torch.Tensor]]
    ) -> None:
        """Zeroes the restored states of a load that has ended, before the request goes on.

        tensors: this rank's, by group of the geometry, with blocks as the first dimension.
        """
        if self._kind != "zero-state":
            return
        for index in _of_kind(job, geometry, "recurrent"):
            item, _, blocks, _ = job.entries[index]
            rest = list(blocks)
            for group in geometry.classes[item].groups:
                count = geometry.groups[group].blocks_per_entry
                mine, rest = rest[:count], rest[count:]
                for tensor in tensors[group]:
                    for block in mine:
                        if block is not None:
                            tensor[block].zero_()
            logger.warning("hybrid-pages: PLANTED FAULT: state zeroed of request %s", job.request)


def _of_kind(job: LoadJob, geometry: Geometry, kind: str) -> list[int]:
    """The indices of a load's entries of one kind."""
    return [
        index for index, entry in enumerate(job.entries) if geometry.classes[entry[0]].kind == kind
    ]


def _with_blocks(entry: LoadEntry, other: LoadEntry) -> LoadEntry:
    item, slots, _, checksums = entry
    return item, slots, other[2], checksums
