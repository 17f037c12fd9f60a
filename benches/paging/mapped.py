"""Memory that is mapped, unmapped and mapped again at one address, as by a sleep and a wake."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64
from typing import Any

from paging.cases import KIB
from paging.driver import AccessDesc, AllocationProp, Driver, DriverError, Missing
from paging.plain import KERNELS, NO_KERNELS, WAYS, Plain, differing, noise
from paging.questions import Found

_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3
_PAGE = 64 * KIB


class Mapped:
    """Addresses with two allocations side by side, as in a segment that has grown."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._prop = AllocationProp(type=_PINNED)
        self._prop.location.type, self._prop.location.id = _ON_DEVICE, 0
        granule, address = c_size_t(), c_uint64()
        driver("cuMemGetAllocationGranularity", byref(granule), byref(self._prop), 0)
        self._each = granule.value
        self.nbytes = 2 * granule.value
        driver("cuMemAddressReserve", byref(address), self.nbytes, 0, 0, 0)
        self.address = address.value

    def map(self) -> None:
        """Takes new memory and maps it."""
        access = AccessDesc(flags=_READ_AND_WRITE)
        access.location = self._prop.location
        for address in (self.address, self.address + self._each):
            handle = c_uint64()
            self.driver("cuMemCreate", byref(handle), self._each, byref(self._prop), 0)
            self.driver("cuMemMap", address, self._each, 0, handle, 0)
            self.driver("cuMemSetAccess", address, self._each, byref(access), 1)
            # It lives until it is unmapped.
            self.driver("cuMemRelease", handle)

    def unmap(self) -> None:
        """Gives the memory back, and keeps the addresses."""
        for address in (self.address, self.address + self._each):
            self.driver("cuMemUnmap", address, self._each)

    def place(self, below: int) -> Plain:
        """An engine over all of it."""
        return Plain(self.address, _PAGE, self.nbytes // _PAGE, below)


def _each_way(driver: Driver, check: Callable[[Mapped, Plain, int], int], key: str) -> Found:
    wrong = 0
    facts: dict[str, Any] = {}
    stream = driver.stream()
    for way, below in WAYS.items():
        mapped = Mapped(driver)
        mapped.map()
        place = mapped.place(below)
        if below == KERNELS and not place.has_kernels:
            facts[way] = NO_KERNELS
            place.engine.close()
            continue
        found = check(mapped, place, stream)
        facts[way] = f"{found} of {mapped.nbytes} bytes differ"
        wrong += found
        place.engine.close()
    return {key: float(wrong)}, facts


def round_trip(driver: Driver, tiny: bool) -> Found:
    """Bytes of mapped memory leave it and come back."""

    def check(mapped: Mapped, place: Plain, stream: int) -> int:
        data = noise(1, mapped.nbytes)
        driver.write(mapped.address, data, stream)
        checksums = place.store(stream)
        wrong = differing(place.stored(), data)
        driver.write(mapped.address, bytes(mapped.nbytes), stream)
        place.load(stream, checksums)
        return wrong + differing(driver.read(mapped.address, mapped.nbytes, stream), data)

    return _each_way(driver, check, "mapped")


def remapped(driver: Driver, tiny: bool) -> Found:
    """An engine that is kept sees the new memory at the old address, and so does a new one."""

    def check(mapped: Mapped, place: Plain, stream: int) -> int:
        driver.write(mapped.address, noise(1, mapped.nbytes), stream)
        place.store(stream)
        mapped.unmap()
        mapped.map()
        data = noise(2, mapped.nbytes)
        driver.write(mapped.address, data, stream)
        place.store(stream)
        wrong = differing(place.stored(), data)
        new = mapped.place(WAYS["copies"])
        new.store(stream)
        wrong += differing(new.stored(), data)
        new.engine.close()
        return wrong

    return _each_way(driver, check, "remapped")


def _unmapped(driver: Driver, way: str) -> Found:
    """What a store says whose memory is gone, and what is left of the context.

    The context may be broken after this.
    """
    facts: dict[str, Any] = {}
    stream, mapped, other = driver.stream(), Mapped(driver), driver.allocate(4096)
    mapped.map()
    place = mapped.place(WAYS[way])
    if way == "kernels" and not place.has_kernels:
        raise Missing(NO_KERNELS)
    driver.write(mapped.address, noise(1, mapped.nbytes), stream)
    place.store(stream)
    mapped.unmap()
    taken = 0
    for name, old in (("a new engine", None), ("the old engine", place)):
        try:
            (old or mapped.place(WAYS[way])).store(stream)
            taken += 1
            facts[name] = "stores without an error"
        except Exception as error:
            # Which error it is, nobody knows before.
            facts[name] = f"refuses: {error}"
    try:
        driver.write(other, b"alive", stream)
        facts["the context"] = "works on"
    except DriverError as error:
        facts["the context"] = f"broken: {error}"
    return {f"unmapped, {way}": float(taken)}, facts


def unmapped_copies(driver: Driver, tiny: bool) -> Found:
    """A store by copies whose memory was unmapped."""
    return _unmapped(driver, "copies")


def unmapped_kernels(driver: Driver, tiny: bool) -> Found:
    """A store by a kernel whose memory was unmapped."""
    return _unmapped(driver, "kernels")


def expandable(driver: Driver, tiny: bool) -> Found:
    """Tensors of torch in segments that grow, given back and taken again."""
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    try:
        import torch
    except ImportError as error:
        raise Missing(str(error)) from error
    if not torch.cuda.is_available():
        raise Missing("torch sees no CUDA device")
    facts: dict[str, Any] = {}
    stream, wrong, nbytes = driver.stream(), 0, 96 << 20
    for turn in range(2):
        # The first tensor makes the segment; the second one makes it grow.
        small = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
        cache = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        segments = torch.cuda.memory_snapshot()
        facts["segments that grow"] = sum(bool(one.get("is_expandable")) for one in segments)
        for below in WAYS.values():
            place = Plain(cache.data_ptr(), _PAGE, nbytes // _PAGE, below)
            checksums = place.store(stream)
            before = cache.clone()
            torch.cuda.synchronize()
            wrong += differing(place.stored(), before.cpu().numpy().tobytes())
            cache.zero_()
            torch.cuda.synchronize()
            place.load(stream, checksums)
            wrong += int((cache != before).sum())
            place.engine.close()
        facts[f"address, turn {turn}"] = hex(cache.data_ptr())
        del small, cache, before
        torch.cuda.empty_cache()
    if not facts["segments that grow"]:
        raise Missing("torch has made no segments that grow")
    return {"expandable": float(wrong)}, facts
