"""A month of traffic: nothing that the scheduler half remembers keeps growing."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping

import pytest

from prove_report import report
from simulation.engine import StartEngine
from simulation.shapes import SHAPES
from simulation.workload import Mix, Workload

DAYS = 30
REQUESTS = 12
DAY_SECONDS = 86_400


def remembered(root: object) -> int:
    """How many values all containers hold that are reached through objects of this package."""
    seen: set[int] = set()
    waiting, total = [root], 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
            total += len(value)
        elif isinstance(value, list | tuple | set | frozenset | deque):
            waiting += value
            total += len(value)
        elif type(value).__module__.startswith("hybrid_pages"):
            names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
            waiting += [getattr(value, name, None) for name in names]
    return total


@pytest.mark.parametrize("name", ["gdn-window"])
def test_a_month_of_traffic_leaves_nothing_that_grows(
    name: str, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    now, steady = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: now() + later)
    monkeypatch.setattr(time, "monotonic", lambda: steady() + later)
    engine = start(SHAPES[name], extra={"host_gb": 0.0003})
    # What has a limit gets a lower one, which these few requests reach.
    connection = engine.half.connection
    forks, answers = connection.checkpoints.forks, connection.checkpoints.answers
    forks._most, answers._most, connection.stores.turns._most = 3_000, 30, 60
    monkeypatch.setattr("hybrid_pages.vllm.scheduler.forks._MOST_ENDINGS", 30)
    mix = Mix(abort=0.05, forget=0.2, salts=(None, "a", "b"), hints=0.3, images=0.2, turns=0.5)
    workload = Workload(random.Random(name), mix)
    days: list[int] = []
    for _ in range(DAYS):
        later += DAY_SECONDS
        # Tenants come and go.
        salt = f"tenant {len(days)}"
        workload.mix = Mix(**(vars(mix) | {"salts": (None, salt)}))
        workload.run(engine, REQUESTS)
        days.append(remembered(engine.half))
    early, late = max(days[5:15]), max(days[15:])
    what = "values that the connector remembered on the fullest of days"
    report({f"{what} 6 to 15": early, f"{what} 16 to 30": late})
    assert late <= early * 1.3 + 20, days


def test_what_grows_is_found() -> None:
    from hybrid_pages.vllm.config.settings import Settings

    settings = Settings()
    before = remembered(settings)
    object.__setattr__(settings, "grows", {"a": [1, 2, 3]})
    assert remembered(settings) == before + 4
