"""A connector beside ours whose synchronous loads fail.

It says that it has the first tokens of a prompt, has them scheduled in the same step, and reports
after that step that it could not load the blocks: vLLM's contract for synchronous loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

OFFER: list[Callable[[Any], int]] = []
"""How many tokens of a request it says it has; set by tests, which run one by one."""


@dataclass
class Failing(KVConnectorMetadata):
    """Blocks of this step's loads."""

    blocks: frozenset[int] = frozenset()


class FailingSibling(KVConnectorBase_V1, SupportsHMA):
    """Both halves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._local: dict[str, int] = {}
        self._planned: set[int] = set()
        self.invalid: frozenset[int] = frozenset()

    # ---- scheduler

    def get_num_new_matched_tokens(self, request: Any, local: int) -> tuple[int, bool]:
        self._local[request.request_id] = local
        return max(0, OFFER[-1](request) - local) if OFFER else 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, external: int) -> None:
        n = self._vllm_config.cache_config.block_size
        first = self._local.pop(request.request_id, 0) // n
        for table in blocks.get_block_ids() if external else ():
            self._planned.update(table[first : first + external // n])

    def build_connector_meta(self, output: Any) -> Failing:
        planned, self._planned = self._planned, set()
        return Failing(frozenset(planned))

    def request_finished(self, request: Any, blocks: Any) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, request: Any, blocks: Any) -> tuple[bool, None]:
        return False, None

    # ---- worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.invalid = self._connector_metadata.blocks

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set(self.invalid)

    def clear_connector_metadata(self) -> None:
        self.invalid = frozenset()
        super().clear_connector_metadata()

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
