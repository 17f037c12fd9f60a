"""The stream that a simulated forward pass computes on, and what it found wrong on its way.

Nothing here waits for the device but `mark` and `verify`, so that the host runs ahead of it as an
engine's does.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import pytest
import torch

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.worker import copy_engine
from hybrid_pages.vllm.worker.states import BlockCopies, StateCopies

from .device import pretended
from .runner import Mismatch

CHECKS = 1 << 18
"""The most comparisons between two calls of `verify`."""
STAGING_BYTES = 64 << 20
CYCLES_A_SECOND = 1_900_000_000


class Mark(Protocol):
    """A place in a stream."""

    def wait(self) -> object:
        """Returns when the stream has come there."""

    def reached(self) -> bool:
        """Whether the stream has come there."""


class EventMark:
    """An event of CUDA."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()
        self._event.record(stream)
        self.wait, self.reached = self._event.synchronize, self._event.query


class PretendedMark:
    """A function that the mock's stream calls."""

    def __init__(self, compute: Pretended) -> None:
        self._event = threading.Event()
        self.reached = self._event.is_set
        compute.run(self._event.set)
        compute.handle()

    def wait(self) -> None:
        assert self._event.wait(60), "the mock's stream does not get on"


class Compute:
    """A stream of torch operations.

    Args:
        device: where its tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._wrong = torch.zeros(CHECKS, dtype=torch.bool, device=device)
        self._checks: list[str] = []
        self._random = random.Random(1)

    def run(self, work: Callable[[], object]) -> None:
        """Gives the stream operations on tensors of the device."""
        raise NotImplementedError

    def put(self, array: Any) -> torch.Tensor:
        """A tensor of the device, in the order of the stream."""
        raise NotImplementedError

    def pause(self, seconds: float | None = None) -> None:
        """Keeps the stream busy for so long, or for about as long as the host needs for a step."""
        raise NotImplementedError

    def mark(self) -> Mark:
        """A place behind all that the stream has been given until now."""
        raise NotImplementedError

    def capture(self) -> None:
        """Captures a graph in the mode that other threads' unsafe calls would break."""
        raise NotImplementedError

    def elsewhere(self) -> AbstractContextManager[None]:
        """Meanwhile, the connector takes another stream for the one that computes."""
        raise NotImplementedError

    def check(self, what: str, differs: Callable[[], torch.Tensor]) -> None:
        """Has the stream compare something; `verify` says what was wrong."""
        index = len(self._checks)
        self._checks.append(what)
        assert index < CHECKS, "call verify() more often"

        def compare() -> None:
            self._wrong[index] = differs()

        self.run(compare)

    def verify(self) -> int:
        """Raises the first mismatch since the last call; returns how many comparisons were made."""
        self.mark().wait()
        wrong = torch.nonzero(self._wrong[: len(self._checks)].cpu()).flatten().tolist()
        checks, self._checks = self._checks, []
        self.run(self._wrong.zero_)
        if wrong:
            raise Mismatch(f"{checks[wrong[0]]} ({len(wrong)} of {len(checks)} comparisons)")
        return len(checks)


class Gpu(Compute):
    """A stream of a CUDA device, which is torch's current one meanwhile."""

    def __init__(self, pause_ms: float = 8.0) -> None:
        super().__init__(torch.device("cuda", 0))
        self.stream = torch.cuda.Stream()
        self._most = pause_ms / 1e3
        self._staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
        self._host, self._at = self._staging.numpy(), 0
        self._other, self._captured = torch.cuda.Stream(), torch.zeros(1, device=self.device)
        torch.cuda.synchronize()

    def run(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self.stream):
            work()

    def put(self, array: Any) -> torch.Tensor:
        """Through a ring of pinned memory, which holds many more steps than run ahead."""
        array = np.ascontiguousarray(array)
        at = -(-self._at // 256) * 256
        if at + array.nbytes > STAGING_BYTES:
            at = 0
        self._at = at + array.nbytes
        self._host[at : self._at] = array.reshape(-1).view(np.uint8)
        kind = torch.from_numpy(array).dtype
        staged = self._staging[at : self._at].view(kind).view(array.shape)
        with torch.cuda.stream(self.stream):
            return staged.to(self.device, non_blocking=True)

    def pause(self, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = self._random.uniform(0, self._most)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(int(seconds * CYCLES_A_SECOND))

    def mark(self) -> EventMark:
        return EventMark(self.stream)

    def capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._other):
            graph.capture_begin(capture_error_mode="global")
            self._captured.add_(1)
            time.sleep(0.003)
            self._captured.add_(1)
            graph.capture_end()
            before = self._captured.clone()
            graph.replay()
            after = self._captured.clone()
        self._other.synchronize()
        assert int(after - before) == 2

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        with torch.cuda.stream(self._other):
            yield


class Pretended(Compute):
    """A stream of the mock, whose memory the host shares. It runs Python functions.

    Args:
        driver: the mock.
    """

    def __init__(self, driver: Any, pause_ms: float = 4.0) -> None:
        super().__init__(torch.device("cpu"))
        self.driver, self._library = driver, ctypes.CDLL(driver.path)
        self._most, self._error = pause_ms / 1e3, None
        self._pending: list[Callable[[], object]] = []
        self._works: dict[int, list[Callable[[], object]]] = {}
        self._stream, self._other, self._number = ctypes.c_void_p(), ctypes.c_void_p(), 0
        for stream in (self._stream, self._other):
            assert not self._library.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0)
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._work)

    def _work(self, number: int) -> None:
        """On the thread of the mock's stream."""
        for work in self._works.pop(number):
            try:
                work()
            except BaseException as error:
                self._error = self._error or error

    def run(self, work: Callable[[], object]) -> None:
        self._pending.append(work)

    def handle(self) -> int:
        """The driver's name of the stream, to which everything has been given."""
        if self._pending:
            self._number += 1
            self._works[self._number], self._pending = self._pending, []
            number = ctypes.c_void_p(self._number)
            assert not self._library.cuLaunchHostFunc(self._stream, self._function, number)
        return int(self._stream.value or 0)

    def put(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array))

    def pause(self, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = self._random.uniform(0, self._most)
        self.run(lambda: time.sleep(seconds))
        self.handle()  # the host goes on meanwhile

    def mark(self) -> PretendedMark:
        return PretendedMark(self)

    def capture(self) -> None:
        assert not self._library.mock_cuda_begin_capture(self._other)
        time.sleep(0.003)
        assert not self._library.mock_cuda_end_capture(self._other)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        right = self._stream
        self.handle()
        self._stream = self._other
        yield
        self._stream = right

    def verify(self) -> int:
        checks = super().verify()
        if self._error is not None:
            raise self._error
        return checks

    def close(self) -> None:
        self.mark().wait()
        for stream in (self._stream, self._other):
            self._library.cuStreamDestroy_v2(stream)


def in_stream(compute: Compute, run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Copies that the stream makes when it comes to them."""
    return lambda self, made: compute.run(lambda given=list(made): run(self, given))


@contextmanager
def pretended_compute(patch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    """The mock's memory and a stream on it: what torch computes is given to that stream."""
    with pretended(patch) as driver:
        compute = Pretended(driver)
        patch.setattr(copy_engine, "current_stream", lambda device: compute.handle())
        for kind in (StateCopies, BlockCopies):
            patch.setattr(kind, "run", in_stream(compute, kind.run))
        yield compute
        compute.close()


@contextmanager
def gpu_compute(patch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU, and a stream on it that is torch's current one. vLLM itself runs as on a CPU."""
    patch.setattr(versions, "pins_memory", lambda: True)
    compute = Gpu()
    with torch.cuda.stream(compute.stream):
        yield compute
    torch.cuda.synchronize()
