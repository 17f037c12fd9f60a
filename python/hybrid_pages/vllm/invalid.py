"""Blocks that another connector could not load, and all that was computed from them."""

from collections.abc import Iterable, Mapping

from hybrid_pages.vllm.states import Tables


def spread(invalid: Iterable[int], tables: Mapping[str, Tables]) -> tuple[set[int], dict[str, int]]:
    """Follows invalid blocks through the requests that hold them.

    Whatever comes after an invalid block in a request was computed from it, and others may have
    found it in the engine's own cache, behind another copy of the invalid one.

    Args:
        invalid: block ids.
        tables: block ids of requests, by group.

    Returns:
        Every block that is wrong, and by request the index of the first one that it holds.
    """
    wrong, holders = set(invalid), dict[str, int]()
    while True:
        before = len(wrong)
        for request_id, groups in tables.items():
            found = (i for ids in groups for i, block in enumerate(ids) if block in wrong)
            first = min(found, default=None)
            if first is not None:
                holders[request_id] = first
                wrong.update(block for ids in groups for block in ids[first:] if block)
        if len(wrong) == before:
            return wrong, holders
