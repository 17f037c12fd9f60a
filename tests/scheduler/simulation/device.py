"""A GPU that only pretends: the mock of the driver, and vLLM's caches in its memory.

The simulated forward pass writes as the host does, so the stream that it 'computes' on never has
anything left to do; the transfers' streams run late and in an order of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "python"))

from device_memory import Device
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.worker import copy_engine
from mock_driver import Mock, build

DEVICE = torch.device("cuda", 0)


@contextmanager
def pretended(patch: pytest.MonkeyPatch) -> Iterator[Mock]:
    """Caches that are allocated meanwhile lie on the mock's device; so says the connector, too."""
    patch.setenv("HYBRID_PAGES_LIBCUDA", str(build()))
    driver = Mock(build())
    driver.reset()
    device, zeros = Device(driver.path), torch.zeros

    def on_device(size: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """vLLM's one buffer is the only large one of bytes."""
        if kwargs.get("dtype") is not torch.int8 or not isinstance(size, int):
            return zeros(size, *args, **kwargs)
        return torch.frombuffer(device.zeros(size), dtype=torch.int8)

    patch.setattr(copy_engine, "cache_device", lambda kv_caches: DEVICE)
    patch.setattr(copy_engine, "current_stream", lambda device: 0)
    patch.setattr(versions, "pins_memory", lambda: True)
    with mock.patch.object(torch, "zeros", on_device):
        yield driver
    assert driver.count("violations") == 0
    driver.reset()
