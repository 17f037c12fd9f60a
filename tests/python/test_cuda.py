"""Without an NVIDIA driver, or with one that lacks something, there is a reason."""

import pytest

from hybrid_pages import CudaError, TransferError, cuda
from hybrid_pages._core import CudaDevice, cuda_devices


def pretend(monkeypatch, library):
    monkeypatch.setenv("HYBRID_PAGES_LIBCUDA", library)


@pytest.mark.parametrize(
    ("library", "why"),
    [
        ("/nowhere/libcuda.so.1", "expected an NVIDIA driver, found none"),
        ("libc.so.6", "expected a CUDA driver with cuInit"),
    ],
)
def test_a_machine_without_a_driver_says_why(monkeypatch, library, why):
    pretend(monkeypatch, library)
    assert not cuda.is_available()
    assert cuda.devices() == []
    assert why in cuda.reason()
    with pytest.raises(CudaError, match=why) as raised:
        cuda_devices()
    assert isinstance(raised.value, TransferError)
    assert (raised.value.call, raised.value.code, raised.value.name) == (None, None, None)


def test_asking_whether_there_is_a_device_makes_no_context(mock):
    before = mock.calls("cuDevicePrimaryCtxRetain")
    assert cuda.is_available()
    assert mock.calls("cuDevicePrimaryCtxRetain") == before
    assert [device.ordinal for device in cuda.devices()] == list(range(CudaDevice.count()))


def test_a_driver_that_fails_or_has_no_devices_says_so(mock):
    mock.fail("cuDeviceGetCount", 1, 999)
    with pytest.raises(CudaError, match="cuDeviceGetCount") as raised:
        cuda_devices()
    assert (raised.value.call, raised.value.code) == ("cuDeviceGetCount", 999)
    mock.fail("cuDeviceGetCount", 1, 100)
    assert "CUDA_ERROR_NO_DEVICE" in cuda.reason()
