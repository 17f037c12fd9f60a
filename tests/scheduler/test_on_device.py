"""The connector on a device that computes behind the host: the mock of the driver.

tests/gpu/test_connector.py is the same on a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import device_runs
from simulation.compute import Pretended, pretended_compute
from simulation.on_device import engines


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    with pretended_compute(monkeypatch) as compute:
        compute.driver.delay(2000)
        yield compute


@pytest.fixture
def start(compute: Pretended) -> Iterator[device_runs.Start]:
    with engines(compute) as start:
        yield start


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("way", device_runs.WAYS)
def test_what_was_stored_is_restored(start: Any, way: str, asynchronous: bool) -> None:
    device_runs.restores(start, way, asynchronous)


def test_caches_that_sleep_come_back(start: Any) -> None:
    device_runs.sleeps(start)


def test_a_request_resumes_inside_a_block(start: Any) -> None:
    device_runs.resumes_inside_a_block(start)


def test_requests_are_preempted(start: Any) -> None:
    device_runs.preempts(start)


def test_graphs_are_captured_beside_transfers(start: Any) -> None:
    device_runs.captures_beside(start)


@pytest.mark.parametrize("seed", range(3))
def test_any_workload(start: Any, seed: int) -> None:
    device_runs.any_workload(start, seed)


@pytest.mark.parametrize("fault", device_runs.FAULTS)
def test_a_planted_fault_shows(
    start: Any, compute: Pretended, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    compute.driver.delay(0)  # copies that need not wait are long ahead of the pass
    device_runs.shows(start, monkeypatch, fault)
