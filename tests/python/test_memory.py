"""Budgets against what a machine and its control groups leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybrid_pages import BudgetError
from hybrid_pages.adapter import memory
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.pool import budget_of

GIB = memory.GIB


class Machine:
    """Files as Linux has them, below a directory."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.mount = root, root / "cgroup"
        self.mount.mkdir()
        for name, path in (
            ("_MEMINFO", root / "meminfo"),
            ("_CGROUP", root / "self"),
            ("_MOUNT", self.mount),
        ):
            patch.setattr(memory, name, str(path))
        patch.setattr(memory, "memory_bytes", lambda: 64 * GIB)

    def available(self, gib: float) -> None:
        text = f"MemTotal: 1 kB\nMemFree: 2 kB\nMemAvailable: {int(gib * GIB) // 1024} kB\n"
        (self.root / "meminfo").write_text(text)

    def belongs_to(self, *lines: str) -> None:
        (self.root / "self").write_text("".join(f"{line}\n" for line in lines))

    def group(
        self, path: str, limit: str, used: float, cached: float = 0, v1: bool = False
    ) -> None:
        at = (self.mount / "memory" if v1 else self.mount) / path
        at.mkdir(parents=True, exist_ok=True)
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        most, now, prefix = names if v1 else ("memory.max", "memory.current", "")
        (at / most).write_text(limit + "\n")
        (at / now).write_text(f"{int(used * GIB)}\n")
        half = int(cached * GIB) // 2
        stat = f"anon 5\n{prefix}active_file {half}\n{prefix}inactive_file {half}\n"
        (at / "memory.stat").write_text(stat)

    def free(self) -> float:
        return memory.free_memory().nbytes / GIB


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def gib(size: float) -> str:
    return str(int(size * GIB))


def test_a_machine_that_says_nothing_has_its_memory(machine: Machine) -> None:
    assert machine.free() == 64


def test_what_others_use_is_not_free(machine: Machine) -> None:
    machine.available(40)
    assert machine.free() == 40
    with pytest.raises(BudgetError, match=r"MemAvailable\), 40.0 GiB, found 41 GiB: lower it$"):
        memory.require_memory(41)
    memory.require_memory(40)


def test_the_limit_of_a_control_group_counts_without_page_cache(machine: Machine) -> None:
    machine.available(40)
    machine.belongs_to("0::/pod/engine")
    machine.group("pod/engine", gib(16), used=10, cached=4)
    assert machine.free() == 10
    with pytest.raises(BudgetError, match=r"control group .*pod/engine \(16.0 GiB\) leaves, 10.0"):
        memory.require_memory(12)


def test_every_group_above_counts(machine: Machine) -> None:
    machine.belongs_to("0::/pod/engine")
    machine.group("pod/engine", "max", used=1)
    machine.group("pod", gib(8), used=3)
    machine.group("", gib(32), used=3)
    assert machine.free() == 5


def test_a_group_of_the_first_version_counts(machine: Machine) -> None:
    machine.belongs_to("9:name=systemd:/", "4:cpu,memory:/docker/abc", "0::/")
    machine.group("docker/abc", gib(12), used=2, cached=1, v1=True)
    machine.group("", "9223372036854771712", used=20, v1=True)
    assert machine.free() == 11


@pytest.mark.parametrize("path", ["/../../pod", "/docker/of/the/host"])
def test_in_a_container_the_mount_is_its_own_group(machine: Machine, path: str) -> None:
    machine.belongs_to(f"0::{path}")
    machine.group("", gib(6), used=1)
    assert machine.free() == 5


def test_a_group_over_its_limit_leaves_nothing(machine: Machine) -> None:
    machine.belongs_to("0::/")
    machine.group("", gib(6), used=7)
    assert machine.free() == 0
    with pytest.raises(BudgetError):
        memory.require_memory(0.001)


def test_engine_cores_share_what_is_free(machine: Machine) -> None:
    machine.available(40)
    with pytest.raises(BudgetError, match=r"4 engine cores x 11 GiB = 44 GiB: .* 10\.0 GiB each"):
        memory.require_memory(11, engine_cores=4)
    memory.require_memory(10, engine_cores=4)


def test_an_automatic_budget_is_half_of_what_is_free(machine: Machine) -> None:
    machine.available(40)
    assert (budget_of("auto"), budget_of("auto", 4), budget_of(3)) == (20, 5, 3)
    memory.require_memory(budget_of("auto", 4), 4)


@pytest.mark.parametrize("budget", ["Auto", "4", "", None, True, [4]])
def test_other_words_are_no_budget(budget: object) -> None:
    with pytest.raises(SettingsError, match="host_gb: expected a number of GiB or 'auto', found"):
        budget_of(budget)
