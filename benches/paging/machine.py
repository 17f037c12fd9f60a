"""The device as the bench sees it: memory, streams, a matmul. Or, dry, the CPU in its place."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

_MATMUL = 8192


@contextlib.contextmanager
def beside(act: Callable[[], object] | None) -> Iterator[None]:
    """Repeats an act on a thread of its own, from its first end on until the block ends.

    Raises:
        Exception: what the act raised.
    """
    if act is None:
        yield
        return
    act()
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            act()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        repeated = thread.submit(repeat)
        try:
            yield
        finally:
            ended.set()
    repeated.result()


class Machine:
    """A CUDA device.

    Args:
        matmul: rows and columns of the matrices that keep it busy.
    """

    device = "cuda"
    cuda = True

    def __init__(self, matmul: int = _MATMUL) -> None:
        torch.cuda.init()
        self.compute, self.up, self.down = (torch.cuda.Stream() for _ in range(3))
        size, kind = (matmul, matmul), torch.bfloat16
        self._a, self._b = (torch.randn(size, device=self.device, dtype=kind) for _ in range(2))
        self._c = torch.empty(size, device=self.device, dtype=kind)
        self._per_matmul = self._measure_matmul()

    def describe(self) -> dict[str, Any]:
        """Name, versions."""
        properties = torch.cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "capability": [properties.major, properties.minor],
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "matmul": f"{self._c.shape[0]} bf16",
            "matmul_ms": self._per_matmul * 1e3,
        }

    def empty(self, *shape: int) -> torch.Tensor:
        """Bytes on the device."""
        return torch.empty(shape, dtype=torch.uint8, device=self.device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Bytes of pinned host memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    @staticmethod
    def handle(stream: Any) -> int:
        """The driver's name of a stream."""
        return int(stream.cuda_stream)

    @staticmethod
    def on(stream: Any) -> Any:
        """Context in which torch uses a stream."""
        return torch.cuda.stream(stream)

    @staticmethod
    def wait(stream: Any) -> None:
        """Until the stream has nothing left to do."""
        stream.synchronize()

    @staticmethod
    def wait_all() -> None:
        """Until the device has nothing left to do."""
        torch.cuda.synchronize()

    def _matmuls(self, count: int) -> tuple[Any, Any]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.compute):
            start.record()
            for _ in range(count):
                torch.matmul(self._a, self._b, out=self._c)
            end.record()
        return start, end

    def _measure_matmul(self) -> float:
        for _ in range(2):  # the first one also loads the library
            start, end = self._matmuls(10)
            end.synchronize()
        return float(start.elapsed_time(end)) / 10e3

    def busy(self, seconds: float, transfer: Callable[[], object] | None) -> tuple[float, int]:
        """Matmuls for about so long, and transfers beside them, one after the other.

        Returns:
            Seconds the matmuls took, and how many transfers ended before they did.
        """
        start, end = self._matmuls(max(1, round(seconds / self._per_matmul)))
        done = 0
        if transfer is not None:
            while not end.query():
                transfer()
                done += not end.query()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3, done

    def decode(self, steps: int, transfer: Callable[[], object] | None) -> list[float]:
        """Seconds of each of so many steps of a small batch, and transfers beside all of them."""
        rows = self._a[:64]
        out = torch.empty((64, self._b.shape[1]), device=self.device, dtype=self._b.dtype)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        # The driver queues about a thousand launches: giving it the steps takes as long as they do.
        with beside(transfer), torch.cuda.stream(self.compute):
            marks[0].record()
            for mark in marks[1:]:
                for _ in range(32):
                    torch.matmul(rows, self._b, out=out)
                mark.record()
            marks[-1].synchronize()
        pairs = itertools.pairwise(marks)
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairs]


class DryMachine(Machine):
    """The CPU in the place of a device: shows that the bench runs, and measures nothing.

    With HYBRID_PAGES_LIBCUDA naming the mock of the driver (tests/mock-cuda), our engine runs too.
    """

    device = "cpu"
    cuda = False

    def __init__(self) -> None:
        self.compute = self.up = self.down = None
        library = os.environ.get("HYBRID_PAGES_LIBCUDA")
        self._driver = ctypes.CDLL(library) if library else None
        if self._driver is not None:
            context, device = ctypes.c_void_p(), ctypes.c_int(0)
            self._driver.cuInit(0)
            self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            self._driver.cuCtxSetCurrent(context)

    def describe(self) -> dict[str, Any]:
        return {"device": "none (dry run)", "cuda": None}

    def empty(self, *shape: int) -> torch.Tensor:
        """Memory of the mock's device, if there is one: our engine takes no other."""
        if self._driver is None:
            return super().empty(*shape)
        address = ctypes.c_uint64()
        nbytes = math.prod(shape)
        if self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)):
            raise MemoryError(f"no {nbytes} bytes of the mock's memory")
        memory = (ctypes.c_uint8 * nbytes).from_address(address.value)
        return torch.frombuffer(memory, dtype=torch.uint8).view(shape)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    @staticmethod
    def handle(stream: Any) -> int:
        return 0

    @staticmethod
    @contextlib.contextmanager
    def on(stream: Any) -> Iterator[None]:
        yield

    @staticmethod
    def wait(stream: Any) -> None:
        pass

    @staticmethod
    def wait_all() -> None:
        pass

    def busy(self, seconds: float, transfer: Callable[[], object] | None) -> tuple[float, int]:
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            if transfer is not None:
                transfer()
                done += 1
        return time.perf_counter() - begin, done

    def decode(self, steps: int, transfer: Callable[[], object] | None) -> list[float]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            sum(range(1000))
            seconds.append(time.perf_counter() - begin)
            if transfer is not None:
                transfer()
        return seconds
