"""The workers of one engine: pipeline stages, and the tensor ranks of each."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from vllm.config import ParallelConfig

Item = TypeVar("Item")


def world_of(parallel: "ParallelConfig") -> tuple[int, int]:
    """The number of pipeline stages, and of tensor ranks in each.

    A worker's ``rank`` is its stage times the number of tensor ranks, plus its tensor rank.
    """
    return int(parallel.pipeline_parallel_size), int(parallel.tensor_parallel_size)


def of_all_stages(item: Item, stages: int) -> list[Item]:
    """Gives an item to the workers with this one's tensor rank in the other pipeline stages, and
    gets theirs, in the order of stages. All of them have to call this."""
    if stages == 1:
        return [item]
    from torch.distributed import all_gather_object
    from vllm.distributed.parallel_state import get_pp_group

    found = [item] * stages
    all_gather_object(found, item, group=get_pp_group().cpu_group)
    return found
