"""The mock of the CUDA driver in place of a real one, and a cache with something in it."""

import pytest

import cache_support
import mock_driver
from checked_server import served  # noqa: F401
from device_memory import Device
from endpoint import server  # noqa: F401


@pytest.fixture(scope="session")
def mock_library():
    return mock_driver.build()


@pytest.fixture
def mock(mock_library, monkeypatch):
    """The driver of this test; none of its rules may be broken."""
    monkeypatch.setenv("HYBRID_PAGES_LIBCUDA", str(mock_library))
    mock = mock_driver.Mock(mock_library)
    mock.reset()
    yield mock
    assert mock.count("violations") == 0
    mock.reset()


@pytest.fixture
def memory(mock):
    """Memory of the mock's first device: that of the host, as numpy sees it."""
    device = Device(mock.path)
    yield device
    mock.reset()
    device.close()


@pytest.fixture
def used():
    """A cache with one stored prompt of two blocks, and its namespace."""
    cache, namespace = cache_support.make()
    cache_support.store(cache, namespace, "ab")
    return cache, namespace
