"""The mock of the CUDA driver in place of a real one, and a cache with something in it."""

import pytest

import cache_support
import mock_driver
from device_memory import Device


@pytest.fixture(scope="session")
def mock_library():
    return mock_driver.build()


@pytest.fixture(scope="session")
def calibrations(tmp_path_factory):
    """Where engines keep what they measured: one calibration serves all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def mock(mock_library, calibrations, monkeypatch):
    """The driver of this test; none of its rules may be broken."""
    monkeypatch.setenv("HYBRID_PAGES_LIBCUDA", str(mock_library))
    monkeypatch.setenv("XDG_CACHE_HOME", str(calibrations))
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
