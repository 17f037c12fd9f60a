"""A connector that knows the bytes of every token: requests resume wherever a test says.

It shows what vLLM itself does behind a resume inside a block, with nothing of this package in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    SupportsHMA,
)

from .function import Origin, Prefix, expand
from .memory import LayerMemory, Memory

TRANSFER = {
    "kv_connector": "Anywhere",
    "kv_connector_module_path": "simulation.anywhere",
}


@dataclass(frozen=True)
class Load:
    """What one request is given: tokens `first` to `end` of its text."""

    request: str
    tokens: list[int]
    tables: tuple[list[int], ...]
    first: int
    end: int


@dataclass
class Loads(KVConnectorMetadata):
    """The loads that begin with a step."""

    loads: list[Load] = field(default_factory=list)


@dataclass
class Plan:
    """What a test decides."""

    offer: Callable[[Any, int], int] = lambda request, local: 0
    """How many tokens a request has in all, given how many vLLM has."""
    delay: Callable[[], int] = lambda: 0
    """Steps that a load takes."""
    wrong: Callable[[Load, int, LayerMemory, bool], Any] = lambda *load: None
    """Other bytes for a column of a layer, if any: a state, or the column's tokens."""
    loads: list[Load] = field(default_factory=list)
    """All loads so far."""


PLANS: list[Plan] = []
"""The last one counts; tests run one by one."""


class Anywhere(KVConnectorBase_V1, SupportsHMA):
    """Both halves."""

    memory: Memory
    origins: Mapping[str, Origin]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_flight: set[str] = set()
        self._local: dict[str, int] = {}
        self._planned: list[Load] = []
        self._moving: list[tuple[int, Load]] = []

    # ---- scheduler

    def get_num_new_matched_tokens(self, request: Any, local: int) -> tuple[int, bool]:
        self._local[request.request_id] = local
        external = min(PLANS[-1].offer(request, local), request.num_tokens - 1) - local
        return max(0, external), external > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, external: int) -> None:
        local = self._local.pop(request.request_id, 0)
        if external:
            end = local + external
            tables = tuple(list(ids) for ids in blocks.get_block_ids())
            tokens = list(request.all_token_ids)
            self.in_flight.add(request.request_id)
            self._planned.append(Load(request.request_id, tokens, tables, local, end))
            PLANS[-1].loads.append(self._planned[-1])

    def build_connector_meta(self, output: Any) -> Loads:
        planned, self._planned = self._planned, []
        return Loads(planned)

    def reset_cache(self) -> bool:
        return True

    def update_connector_output(self, output: Any) -> None:
        self.in_flight -= output.finished_recving or set()

    def request_finished(self, request: Any, blocks: Any) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, request: Any, blocks: Any) -> tuple[bool, None]:
        return False, None

    # ---- worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for load in self._connector_metadata.loads:
            self._moving.append((PLANS[-1].delay(), load))

    def get_transfer_results(self, finished: set[str]) -> KVConnectorTransferResults:
        done = [load for left, load in self._moving if not left]
        self._moving = [(left - 1, load) for left, load in self._moving if left]
        for load in done:
            self._write(load)
        names = {load.request for load in done}
        return KVConnectorTransferResults(finished_recving=names or None)

    def _write(self, load: Load) -> None:
        """As a load of whole pages: what lies behind the last token in its block is zeroed."""
        prefix = Prefix(self.origins[load.request], load.tokens)
        for group, layers in enumerate(self.memory.groups):
            n, table = self.memory.block_tokens[group], load.tables[group]
            last = -(-load.end // n) - 1
            columns = range(load.first // n, last + 1)
            for column in [last] if self.memory.recurrent[group] else columns:
                for layer in layers if table[column] else ():
                    self._write_column(load, prefix, group, layer, column, n)

    def _write_column(
        self, load: Load, prefix: Prefix, group: int, layer: LayerMemory, column: int, n: int
    ) -> None:
        block, recurrent = load.tables[group][column], self.memory.recurrent[group]
        wrong = PLANS[-1].wrong(load, column, layer, recurrent)
        if recurrent:
            data = wrong
            if data is None:
                data = expand([prefix.after(load.end)], layer.key, layer.token_bytes)[0]
            layer.live[block] = np.reshape(data, layer.live.shape[1:])
            return
        rows = np.zeros((n, layer.token_bytes), np.uint8)
        end = min(load.end, (column + 1) * n)
        digests = prefix.of_tokens(column * n, end)
        rows[: len(digests)] = expand(digests, layer.key, layer.token_bytes)
        if wrong is not None:
            rows[: len(digests)] = wrong[: len(digests)]
        layer.live[block] = rows.reshape(layer.live.shape[1:])

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
