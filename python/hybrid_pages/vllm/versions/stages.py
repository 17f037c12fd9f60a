"""The workers of one engine: pipeline stages, and the tensor ranks of each."""

from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from hybrid_pages.adapter.errors import EngineError

if TYPE_CHECKING:
    from vllm.config import ParallelConfig

Item = TypeVar("Item")

WAIT_SECONDS = 300
"""How long a stage waits for the others. All of them are called at once, and by default vLLM gives
up the start of an engine after 600 seconds."""


def world_of(parallel: "ParallelConfig") -> tuple[int, int]:
    """The number of pipeline stages, and of tensor ranks in each.

    A worker's ``rank`` is its stage times the number of tensor ranks, plus its tensor rank.
    """
    return int(parallel.pipeline_parallel_size), int(parallel.tensor_parallel_size)


def ray_reports_of_all_stages() -> bool:
    """Whether the scheduler gets the reports of all pipeline stages with Ray. vLLM 0.32 has an
    executor that gives it those of the last stage alone, see :data:`DIFFERENCES`."""
    from vllm import envs

    return bool(getattr(envs, "VLLM_USE_RAY_V2_EXECUTOR_BACKEND", True))


def of_all_stages(item: Item, stages: int) -> list[Item]:
    """Gives an item to the workers with this one's tensor rank in the other pipeline stages, and
    gets theirs, in the order of stages. All of them have to call this.

    Raises:
        EngineError: another stage did not, or its process has ended.
    """
    if stages == 1:
        return [item]
    from torch.distributed import all_gather_object, barrier
    from vllm.distributed.parallel_state import get_pp_group

    found, group = [item] * stages, get_pp_group().cpu_group
    try:
        barrier(group=group, async_op=True).wait(timedelta(seconds=WAIT_SECONDS))
        all_gather_object(found, item, group=group)
    except RuntimeError as error:
        raise EngineError(
            f"pipeline stages: expected all {stages} to say what layers they have within "
            f"{WAIT_SECONDS} seconds, found one that did not ({error}): see the log of the other "
            "stages, and give every node the same --kv-transfer-config"
        ) from error
    return found
