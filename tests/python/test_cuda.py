"""Without an NVIDIA driver, or with one that lacks something, there is a reason."""

import os
import subprocess
import sys

import pytest

from hybrid_pages import CudaError, TransferError, cuda
from hybrid_pages._core import CudaDevice, cuda_devices
from hybrid_pages.adapter import cuda as adapter


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


@pytest.mark.parametrize(
    ("ask", "left"),
    [
        ("(cuda.is_available(), cuda.reason())", "(True, None) True"),
        ("[device.ordinal for device in cuda.devices()]", "[0, 1] False"),
    ],
)
def test_a_fork_can_use_the_driver_unless_it_was_started_before(mock, ask, left):
    program = f"""
import os
from hybrid_pages import cuda
from hybrid_pages._core import CudaDevice
print({ask}, flush=True, end=" ")
if (child := os.fork()) == 0:
    os._exit(CudaDevice.count())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == left, done.stderr


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"MOCK_CUDA_DEVICES": "0"}, "cuInit failed: CUDA_ERROR_NO_DEVICE (100)"),
        ({"MOCK_CUDA_FAIL": "cuDeviceGetCount:1:999;cuDeviceGetCount:2:999"}, "(999)"),
    ],
)
def test_a_driver_that_another_process_asks_says_why_there_is_no_device(mock, variables, why):
    program = "from hybrid_pages import cuda; print(cuda.reason(), cuda.is_available())"
    command = [sys.executable, "-c", program]
    environment = os.environ | variables
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert why in done.stdout and done.stdout.endswith(" False\n"), done.stderr


@pytest.mark.parametrize(
    "change",
    ["adapter.get_executable = lambda: None", "sys.frozen = True", "os.environ[asking] = '1'"],
)
def test_a_program_that_is_no_interpreter_asks_the_driver_itself(mock, change):
    program = f"""
import os, subprocess, sys
from hybrid_pages import cuda
from hybrid_pages.adapter import cuda as adapter
asking = adapter._ASKING
{change}
subprocess.run = None
print(cuda.reason())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "None\n", done.stderr


def test_what_libraries_print_is_no_answer(mock, monkeypatch, tmp_path):
    monkeypatch.setattr(adapter, "started_cuda_devices", lambda: None)
    monkeypatch.setattr(adapter, "_found", set())
    noisy = tmp_path / "python"
    for after, why in [(f'{sys.executable} "$@"', None), ("exit 0", "a banner")]:
        noisy.write_text(f"#!/bin/sh\necho a banner\n{after}\n[ $? = 0 ] && echo bye\n")
        noisy.chmod(0o755)
        adapter._found.clear()
        monkeypatch.setattr(adapter, "get_executable", lambda: str(noisy))
        found = cuda.reason()
        assert found is None if why is None else why in found


def test_no_process_that_could_ask_is_a_reason(mock, monkeypatch):
    monkeypatch.setattr(adapter, "started_cuda_devices", lambda: None)
    monkeypatch.setattr(adapter, "_found", set())
    for executable, why in [("/nowhere/python", "No such file"), ("/bin/false", "exit status 1")]:
        monkeypatch.setattr(adapter, "get_executable", lambda path=executable: path)
        assert why in cuda.reason()


def test_a_driver_that_fails_or_has_no_devices_says_so(mock):
    mock.fail("cuDeviceGetCount", 1, 999)
    with pytest.raises(CudaError, match="cuDeviceGetCount") as raised:
        cuda_devices()
    assert (raised.value.call, raised.value.code) == ("cuDeviceGetCount", 999)
    mock.fail("cuDeviceGetCount", 1, 100)
    assert "CUDA_ERROR_NO_DEVICE" in cuda.reason()
