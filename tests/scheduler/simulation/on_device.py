"""The simulation on a device: its forward passes are work for a stream, and run behind the host.

Whatever a step reads is compared on the device, in the order of the stream. The host learns of it
at `Engine.run`'s end, and waits for a step no sooner than vLLM does: when it needs its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput

from .compute import Compute, Mark
from .engine import Engine, connector
from .function import Bytes
from .memory import POISON, LayerMemory, Memory
from .runner import Runner
from .shapes import GDN, Shape
from .stages import Work
from .states import Form


@dataclass
class DeviceLayer(LayerMemory):
    """A layer whose blocks, live and shadow, are tensors."""

    compute: Compute = None
    memory: DeviceMemory = None

    @property
    def block_strides(self) -> tuple[int, ...]:
        return self.live.stride()[1:]

    # ---- for the host, which waits

    def tokens(self, blocks: Sequence[int]) -> Bytes:
        return self._read(list(blocks)).reshape(-1, self.token_bytes)

    def state(self, block: int) -> Bytes:
        return self._read([block]).reshape(-1)

    def _read(self, blocks: list[int]) -> Bytes:
        self.compute.mark().wait()
        return self.live[blocks].cpu().numpy()

    # ---- for the stream

    def other_token(self, blocks: Sequence[int], first: int, expected: Bytes) -> None:
        rows, wanted = self._rows(blocks), self.compute.put(expected)
        self._check(
            f"tokens from {first} on in blocks {list(blocks)}",
            lambda: self.live[rows].reshape(-1, self.token_bytes)[first : first + len(wanted)],
            wanted,
        )

    def other_state(self, block: int, expected: Bytes) -> None:
        wanted = self.compute.put(expected)
        self._check(f"the state in block {block}", lambda: self.live[block].reshape(-1), wanted)

    def _check(self, what: str, found: Callable[[], torch.Tensor], wanted: torch.Tensor) -> None:
        what = f"step {self.memory.steps}, layer {self.name}: {what}"
        self.compute.check(what, lambda: (found() != wanted).any())

    def write_tokens(self, blocks: Sequence[int], offsets: Bytes, data: Bytes) -> None:
        tokens = self.live.shape[2]
        place = tuple(map(self._rows, (blocks, offsets // tokens, offsets % tokens)))
        rows = self.compute.put(data.reshape(len(offsets), *self.live.shape[3:]))
        for blocks_of in (self.live, self.shadow):
            self.compute.run(lambda to=blocks_of: to.index_put_(place, rows))

    def write_state(self, block: int, data: Bytes) -> None:
        state = self.compute.put(data.reshape(self.live.shape[1:]))
        for blocks_of in (self.live, self.shadow):
            self.compute.run(lambda to=blocks_of: to[block].copy_(state))

    def copy_block(self, source: int, destination: int) -> None:
        for blocks_of in (self.shadow, self.live):
            self.compute.run(lambda to=blocks_of: to[destination].copy_(self.live[source]))

    def zero(self, blocks: Sequence[int]) -> None:
        rows = self._rows(blocks)
        for blocks_of in (self.live, self.shadow):
            self.compute.run(lambda to=blocks_of: to.index_fill_(0, rows, 0))

    def _rows(self, blocks: Any) -> torch.Tensor:
        return self.compute.put(np.asarray(blocks, dtype=np.int64))


class DeviceMemory(Memory):
    """The buffer, its shadow and the comparison of both, on a device."""

    def __init__(self, compute: Compute, *args: Any) -> None:
        self.compute, self.device, self.steps = compute, compute.device, 0
        super().__init__(*args)
        compute.mark().wait()

    def _take(self, raw: torch.Tensor) -> None:
        self._raw, self._shadow = raw, torch.empty_like(raw)
        self._permitted = torch.zeros_like(raw, dtype=torch.bool)
        self.forget()

    def forget(self) -> None:
        for buffer in (self._raw, self._shadow):
            self.compute.run(lambda to=buffer: to.fill_(POISON))

    def _view(self, name: str, key: int, blocks: torch.Tensor, form: Form | None) -> DeviceLayer:
        assert form is None, "states that verify drafts are not simulated on a device"
        shadow = self._shadow.as_strided(blocks.shape, blocks.stride(), blocks.storage_offset())
        return DeviceLayer(name, key, blocks, shadow, compute=self.compute, memory=self)

    def accept_loads(self, loading: Iterable[tuple[int, int]]) -> int:
        permitted: dict[int, list[int]] = {}
        for group, block in loading:
            permitted.setdefault(group, []).append(block)
        may = [
            (self._permitted.as_strided(shadow.shape, shadow.stride(), shadow.storage_offset()), to)
            for group, blocks in permitted.items()
            for to in [self.compute.put(np.asarray(blocks, dtype=np.int64))]
            for shadow in (layer.shadow for layer in self.groups[group])
        ]

        def others() -> torch.Tensor:
            now = self._raw.clone()
            wrong = now != self._shadow
            if may:
                self._permitted.zero_()
                for view, rows in may:
                    view.index_fill_(0, rows, True)
                wrong &= ~self._permitted
            self._shadow.copy_(now)
            return wrong.any()

        self.compute.check(f"step {self.steps}: bytes outside the blocks being written", others)
        return 0


@dataclass
class DeviceRunner(Runner):
    """A rank whose passes are given to a stream."""

    compute: Compute = None

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.memory.steps = self.steps + 1
        self.compute.pause()
        return super().execute(output)

    def _last_digest(self, request: Any, end: int) -> int:
        """As the memory has it if it is right, which `verify` finds out later."""
        return request.prefix.after(end)


class DeviceEngine(Engine):
    """An engine core whose workers compute on a device.

    Args:
        compute: the device's stream.
    """

    def __init__(self, compute: Compute, *args: Any, **options: Any) -> None:
        self.compute = compute
        self.checks = 0
        """Comparisons that were made on the device."""
        self.most_ahead = 0
        """The most steps that the device had not ended when it was given one, that one included."""
        self._ended: dict[int, Mark] = {}
        super().__init__(*args, **options)

    def _memory(self, plan: KVCacheConfig, kernels: list[int], rank: int) -> Memory:
        return DeviceMemory(self.compute, plan, self.shape.layout, kernels, rank)

    def _executor(self, *args: Any, **kwargs: Any) -> Runner:
        return DeviceRunner(*args, compute=self.compute, **kwargs)

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput | Work:
        result = super()._execute(output)
        self._ended[id(output)] = self.compute.mark()
        ahead = sum(not mark.reached() for mark in self._ended.values())
        self.most_ahead = max(self.most_ahead, ahead)
        return result

    def _update(self, output: SchedulerOutput, done: ModelRunnerOutput | Work) -> None:
        self._ended.pop(id(output)).wait()
        super()._update(output, done)

    def run(self, limit: int = 5000) -> None:
        super().run(limit)
        self.checks += self.compute.verify()

    def check_idle(self) -> None:
        super().check_idle()
        self.checks += self.compute.verify()


@contextmanager
def engines(compute: Compute) -> Iterator[Callable[..., DeviceEngine]]:
    """Starts engines with the connector; keyword arguments are Engine's, `extra` its settings."""
    made: list[DeviceEngine] = []

    def start(
        shape: Shape = GDN, *, extra: dict[str, Any] | None = None, **options: Any
    ) -> DeviceEngine:
        transfer = connector(**(extra or {}))
        made.append(DeviceEngine(compute, shape, transfer=transfer, **options))
        return made[-1]

    yield start
    for engine in made:
        engine.close()
