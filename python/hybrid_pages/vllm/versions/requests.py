"""Requests and LoRAs in vLLM's scheduler."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

STEPS_IN_FLIGHT = 2
"""Under asynchronous scheduling a step is planned before the one before it is reported: a step is
reported by the second update after it was planned, if not by the first. With pipeline stages it may
take more updates, see :func:`~hybrid_pages.vllm.versions.plan.steps_ahead`."""


def processed(request: "Request") -> int:
    """How many tokens are certainly computed. vLLM counts a step, with its drafts, when it is
    planned, and takes off rejected drafts when the step is reported."""
    return int(request.num_computed_tokens - request.num_in_flight_tokens)


def token_at(request: "Request", position: int) -> bytes:
    """Bytes that identify a known token: its id and, in an image, which image and where in it."""
    named = int(request.all_token_ids[position]).to_bytes(8, "little")
    for item in request.mm_features:
        place = item.mm_position
        if place.offset <= position < place.offset + place.length:
            named += f"{position - place.offset} {item.identifier}".encode()
    return named


def drafter_tokens(config: "VllmConfig", drafts: int) -> int | None:
    """The most tokens that a request may have after a step with draft layers; None for no limit.

    vLLM's first model runner leaves the draft layers out of a step, for all of its requests, if one
    of them is longer (``GPUModelRunner._input_fits_in_drafter``). Their pages then keep what was
    there.
    """
    found = config.speculative_config
    if found is None or config.use_v2_model_runner:
        return None
    model = found.draft_model_config
    longest = None if model is None else model.max_model_len
    return int(longest or config.model_config.max_model_len) - drafts


def fields(config: object) -> dict[str, Any]:
    """All values of one of vLLM's configurations, by name."""
    return vars(config)


def waits(request: "Request") -> bool:
    """Whether a request waits for its turn, or for a load."""
    from vllm.v1.request import RequestStatus

    waiting = RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS, RequestStatus.PREEMPTED
    return request.status in waiting


def failed(request: "Request") -> bool:
    """Whether an ended request ended in an error, such as a load of another connector."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.FINISHED_ERROR)


def aborted(request: "Request") -> bool:
    """Whether an ended request was aborted."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.FINISHED_ABORTED)


def compute_anew(request: "Request", manager: "KVCacheManager") -> None:
    """Makes a request that waits for a load begin again, with no blocks and nothing computed.

    vLLM's own way follows ``kv_load_failure_policy``, which it reads for all connectors at once,
    and by default ends such requests. The scheduler looks at ``num_computed_tokens`` when it takes
    up the request again: at 0 it looks prefixes up and allocates as for a new one.
    """
    manager.free(request)
    request.num_computed_tokens = 0


def free_at_once(request: "Request") -> None:
    """Lets the scheduler free the blocks of an ended request though a step that may write them is
    in flight, as it does without a connector.

    With one, it waits for the report of that step, since loads of some connectors are not ordered
    behind it (``Scheduler._request_blocks_can_be_freed``).
    """
    request.last_sched_seq = 0


def reloads_lora(lora: "LoRARequest") -> bool:
    """Whether the worker reads a LoRA's files again when the request is scheduled."""
    return bool(lora.load_inplace)


def lora_layout(lora: "LoRARequest") -> str:
    """A name for how a LoRA's files are read: its request says whether the weights of experts are
    fused."""
    return "fused experts" if lora.is_3d_lora_weight else "as it is"
