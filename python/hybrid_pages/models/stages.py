"""Which layers are in which pipeline stage.

Restates ``vllm/distributed/utils.py: get_pp_indices``.
"""

from __future__ import annotations

from hybrid_pages.models.config import RanksError

PARTITION = "VLLM_PP_LAYER_PARTITION"
"""The environment variable in which vLLM finds the number of layers of each stage."""


def split(count: int, stages: int, partition: str | None = None) -> list[int]:
    """The number of layers of each stage.

    Without a partition, all stages have equally many; of those left over, the last stage gets none,
    and each stage before it one, from the back.

    Args:
        count: how many layers the model has, those that keep nothing included.
        stages: ``--pipeline-parallel-size``.
        partition: the layers of each stage, separated by commas, as in :data:`PARTITION`.

    Raises:
        RanksError: more stages than layers, or a partition of other stages or layers.
    """
    if stages > count:
        raise RanksError(
            f"--pipeline-parallel-size: expected at most one stage for each of {count} layers, "
            f"found {stages}"
        )
    if partition is not None and stages > 1:
        return _given(count, stages, partition)
    each, left = divmod(count, stages)
    return [each + (stages - 1 - left <= stage < stages - 1) for stage in range(stages)]


def _given(count: int, stages: int, partition: str) -> list[int]:
    expected = f"{PARTITION}: expected the layers of {stages} stages, {count} in all"
    try:
        found = [int(part) for part in partition.split(",")]
    except ValueError:
        raise RanksError(f"{expected}, found {partition!r}") from None
    if len(found) != stages or sum(found) != count or min(found) < 0:
        raise RanksError(f"{expected}, found {partition!r}")
    return found
