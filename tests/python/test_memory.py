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
            ("_HUGE", root / "huge"),
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

    def slows_down_at(self, path: str, limit: str) -> None:
        (self.mount / path / "memory.high").write_text(limit + "\n")

    def huge_pages(self, total: int, free: int, reserved: int = 0) -> None:
        names = {"nr": total, "free": free, "resv": reserved}
        (self.root / "huge").mkdir()
        for name, count in names.items():
            (self.root / "huge" / f"{name}_hugepages").write_text(f"{count}\n")

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


def test_a_group_that_slows_down_before_its_limit_is_full_there(machine: Machine) -> None:
    """What is pinned can't be reclaimed: above it, everything would stand still."""
    machine.belongs_to("0::/pod")
    machine.group("pod", gib(16), used=2)
    machine.slows_down_at("pod", "max")
    assert machine.free() == 14
    machine.slows_down_at("pod", gib(12))
    assert machine.free() == 10
    machine.group("pod", "max", used=2)
    assert machine.free() == 10


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


def test_the_groups_of_a_process_are_those_that_may_limit_it(machine: Machine) -> None:
    machine.belongs_to("0::/pod/engine")
    machine.group("pod/engine", gib(16), used=1)
    machine.group("pod", gib(24), used=2)
    limited = [free.group for free in memory.limits() if free.group]
    assert limited == ["/pod/engine", "/pod"]
    assert "/" in memory.groups_of("self") and memory.groups_of("0") == set()


@pytest.mark.parametrize("path", ["/../../pod", "/docker/of/the/host"])
def test_in_a_container_its_own_group_is_named_by_the_path(machine: Machine, path: str) -> None:
    """Which processes of other containers that may be seen do not have."""
    machine.belongs_to(f"0::{path}")
    machine.group("", gib(6), used=1)
    assert [free.group for free in memory.limits() if free.group] == [path]


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


def test_a_node_has_its_part_of_a_budget(machine: Machine) -> None:
    machine.available(40)
    memory.require_memory(80, nodes=2)
    with pytest.raises(BudgetError, match=r"found 88 GiB on 2 nodes = 44 GiB here: .* 80\.0 GiB$"):
        memory.require_memory(88, nodes=2)
    said = r"4 engine cores x 22 GiB on 2 nodes = 44 GiB here: .* 20\.0 GiB each"
    with pytest.raises(BudgetError, match=said):
        memory.require_memory(22, engine_cores=4, nodes=2)
    machine.huge_pages(total=5000, free=2050)
    memory.require_huge_pages(8, ranks=4, nodes=2)
    with pytest.raises(BudgetError, match=r"expected 2052 free huge pages of 2 MiB for 4\.00"):
        memory.require_huge_pages(8.01, ranks=4, nodes=2)


def test_an_automatic_budget_is_half_of_what_is_free(machine: Machine) -> None:
    machine.available(40)
    assert (budget_of("auto"), budget_of("auto", 4), budget_of(3)) == (20, 5, 3)
    memory.require_memory(budget_of("auto", 4), 4)


@pytest.mark.parametrize("budget", ["Auto", "4", "", None, True, [4]])
def test_other_words_are_no_budget(budget: object) -> None:
    with pytest.raises(SettingsError, match="host_gb: expected a number of GiB or 'auto', found"):
        budget_of(budget)


def test_next_to_no_memory_is_no_automatic_budget(machine: Machine) -> None:
    machine.available(0.07)
    assert budget_of("auto", 2) == 0.01
    with pytest.raises(BudgetError, match=r"'auto' .*MemAvailable\), 0\.1 GiB: free some, or name"):
        budget_of("auto", 4)


def test_budgets_of_huge_pages_need_a_page_more_for_each_plane(machine: Machine) -> None:
    machine.huge_pages(total=5000, free=4104, reserved=4)
    memory.require_huge_pages(8, ranks=4)
    with pytest.raises(BudgetError) as refused:
        memory.require_huge_pages(8, ranks=4, engine_cores=2)
    assert str(refused.value).startswith(
        "host_gb: expected 8200 free huge pages of 2 MiB for 16 GiB, found 4100: reserve them with "
        "`sysctl -w vm.nr_hugepages=9100` on the machine"
    )


def test_a_machine_without_huge_pages_says_how_to_provide_them(machine: Machine) -> None:
    with pytest.raises(BudgetError, match=r"found 0: .* vm\.nr_hugepages=513` "):
        memory.require_huge_pages(1, ranks=1)


@pytest.mark.parametrize("kind", ["hugetlb.2MB", "hugetlb.2MB.rsvd"])
@pytest.mark.parametrize("first", [False, True])
def test_the_limit_of_a_control_group_on_huge_pages_counts(
    machine: Machine, kind: str, first: bool
) -> None:
    machine.huge_pages(total=5000, free=5000)
    machine.belongs_to("5:hugetlb:/pod" if first else "0::/pod")
    at = machine.mount / ("hugetlb/pod" if first else "pod")
    at.mkdir(parents=True)
    limit, usage = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
    (at / f"{kind}.{limit}").write_text(gib(4))
    (at / f"{kind}.{usage}").write_text(gib(1))
    memory.require_huge_pages(2.9, ranks=2)
    with pytest.raises(BudgetError, match=r"pod \(4\.0 GiB\) leaves, 3\.0 GiB .* hugepages-2Mi"):
        memory.require_huge_pages(3, ranks=2)
