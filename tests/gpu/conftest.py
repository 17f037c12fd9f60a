"""Tests with a real GPU; without a GPU or a driver they are skipped, with a reason.

Helpers are those of tests/python, where the same engine runs over the mock of the driver.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from device_memory import Device
from hybrid_pages import cuda


def pytest_collection_modifyitems(items):
    reason = cuda.reason()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def memory():
    """Memory of the first device, through the driver."""
    device = Device()
    yield device
    device.close()


@pytest.fixture(scope="session")
def torch():
    """torch with a CUDA device."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return torch
