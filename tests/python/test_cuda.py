"""Without an NVIDIA driver, or with one that lacks something, there is a reason."""

import pytest

from hybrid_pages import CudaError, TransferError, cuda, cuda_devices


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
