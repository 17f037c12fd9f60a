"""vLLM's scheduler and both halves of the connector, with caches in the memory of a GPU.

tests/scheduler/test_on_device.py is the same on the mock of the driver.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scheduler"))

import vllm_environment  # noqa: F401 - before vLLM

try:
    import device_runs
    from simulation.compute import gpu_compute
    from simulation.on_device import engines
except ModuleNotFoundError as missing:
    pytest.skip(f"{missing}: see make gpu-wheels", allow_module_level=True)


@pytest.fixture
def start(torch, monkeypatch):
    with gpu_compute(monkeypatch) as compute, engines(compute) as start:
        yield start


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("way", device_runs.WAYS)
def test_what_was_stored_is_restored(start, way, asynchronous):
    device_runs.restores(start, way, asynchronous)


@pytest.mark.parametrize("way", ["copies", "kernels"])
def test_pages_of_real_sizes(start, way):
    device_runs.restores(start, way, True, device_runs.LARGE)


def test_caches_that_sleep_come_back(start):
    device_runs.sleeps(start)


def test_a_request_resumes_inside_a_block(start):
    device_runs.resumes_inside_a_block(start)


def test_requests_are_preempted(start):
    device_runs.preempts(start)


def test_graphs_are_captured_beside_transfers(start):
    device_runs.captures_beside(start)


@pytest.mark.parametrize("seed", range(12))
def test_any_workload(start, seed):
    device_runs.any_workload(start, seed)


@pytest.mark.parametrize("fault", device_runs.FAULTS)
def test_a_planted_fault_shows(start, monkeypatch, fault):
    device_runs.shows(start, monkeypatch, fault)
