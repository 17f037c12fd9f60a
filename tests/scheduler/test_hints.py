"""Hints of a request for the policy: `retain`, `priority`, `store`, `session`, in docs/hints.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hybrid_pages._core import Trace
from hybrid_pages.vllm.scheduler.requests.hints import _CHECKS, read_hints
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_checkpoints import LARGE, counters, visit

SMALL = {"host_gb": 0.0001}

HUGE = 10**5000
"""Python refuses to print it."""
DEEP: list[Any] = []
"""Python cannot print it."""
for _ in range(100_000):
    DEEP = [DEEP]


def flood(engine: Engine, count: int = 12, **more: Any) -> None:
    """One-shot prompts that together need several times the room of :data:`SMALL`."""
    for seed in range(1000, 1000 + count):
        visit(engine, tokens(6 * N + 1, seed), **more)


@pytest.mark.usefixtures("seconds_apart")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", ["reuse", "lru"])
@pytest.mark.parametrize("name", ["gdn", "gdn-window", "attention-only"])
def test_what_is_retained_is_restored_after_a_flood(
    name: str, policy: str, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(SHAPES[name], async_scheduling=asynchronous, extra=SMALL | {"policy": policy})
    kept, other = tokens(5 * N + 2, 1), tokens(5 * N + 2, 2)
    engine.generate(kept, hints={"retain": 600})
    engine.generate(other)
    flood(engine)
    assert (visit(engine, kept), visit(engine, other)) == (5 * N, 0)
    engine.check_idle()


def test_where_everything_is_retained_prompts_still_find_room(start: StartEngine) -> None:
    engine = start(extra=SMALL)
    flood(engine, hints={"retain": 86_400, "priority": 10})
    said = engine.generate(tokens(5 * N + 2, 1)).request.all_token_ids
    assert visit(engine, [*said, 7]) == len(said) - 1
    assert "skipped_entries:no_room" not in counters(engine)
    engine.check_idle()


@pytest.mark.parametrize("mode", ["adaptive", "all", "align"])
@pytest.mark.parametrize("name", ["gdn", "attention-only"])
def test_of_a_request_that_is_not_to_be_stored_nothing_is(
    name: str, mode: str, start: StartEngine
) -> None:
    engine = start(SHAPES[name], extra=LARGE | {"checkpoint_mode": mode})
    shared, secret = tokens(5 * N + 2, 1), tokens(3 * N, 2)
    engine.generate(shared)
    before = counters(engine)
    # What is there is restored for it all the same.
    there = 5 * N if name == "attention-only" or mode == "align" else len(shared)
    assert visit(engine, shared + secret, 2 * N, hints={"store": False}) == there
    engine.run()
    after = counters(engine)
    for kind in ("pages", "checkpoints", "windows"):
        key = f"stored_entries:{kind}"
        assert after.get(key, 0) == before.get(key, 0)
    assert after.get("steered_steps", 0) == before.get("steered_steps", 0)
    if name == "attention-only" or mode == "all":
        assert after["skipped_entries:hint"] > 0
    assert visit(engine, shared + secret) == there
    engine.check_idle()


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ({"retain": -1}, {"priority": 3}),
        ({"retain": 86_401}, {"session": "a"}),
        ({"retain": float("nan")}, {"store": False}),
        ({"retain": "60"}, {"session": "a"}),
        ({"retain": True}, {"session": "a"}),
        ({"priority": 11}, {"retain": 60}),
        ({"priority": -11}, {"retain": 60}),
        ({"priority": 1.5}, {"retain": 0.5}),
        ({"priority": False}, {"retain": 60}),
        ({"priority": 2**80}, {"retain": 60}),
        ({"priority": HUGE}, {"retain": 60}),
        ({"retain": HUGE}, {"session": "a"}),
        ({"retain": float("inf")}, {"session": "a"}),
        ({"checkpoint_at": [HUGE]}, {"retain": 60}),
        ({"checkpoint_at": [DEEP]}, {"retain": 60}),
        ({"checkpoint_at": [True]}, {"retain": 60}),
        ({"session": DEEP}, {"retain": 60}),
        ({HUGE: 60}, {"retain": 60}),
        ({"k" * 10**6: 60}, {"retain": 60}),
        ({"session": ""}, {"retain": 60}),
        ({"session": "s" * 257}, {"retain": 60}),
        ({"session": 7}, {"retain": 60}),
        ({"session": None}, {"retain": 60}),
        ({"store": 0}, {"retain": 60}),
        ({"store": "false"}, {"retain": 60}),
        ({"expect_in": -1}, {"retain": 60}),
        ({"expect_in": "5"}, {"release": True}),
        ({"expect_in": False}, {"retain": 60}),
        ({"expect_in": HUGE}, {"retain": 60}),
        ({"expect_in": 86_401}, {"expect_in_": None, "retain": 60}),
        ({"release": 1}, {"expect_in": 2.5}),
        ({"release": "true"}, {"retain": 60}),
        ({"retained": 60}, {"retain": 60}),
        ({7: 60}, {"retain": 60}),
        ({"checkpoint_at": [0]}, {"checkpoint_at_": None, "retain": 60}),
    ],
)
def test_a_wrong_hint_is_ignored_alone(bad: dict[Any, Any], good: dict[str, Any]) -> None:
    found = read_hints({"hybrid_pages": bad | good}, 64)
    unknown = {key for key in good if key.endswith("_")}
    alone = read_hints({"hybrid_pages": {k: v for k, v in good.items() if k not in unknown}}, 64)
    assert found == alone != read_hints(None, 64)
    assert len(found.errors) == 1 + len(unknown)
    assert "expected" in str(found.errors[0]) and "found" in str(found.errors[0])
    assert len(str(found.errors[0])) < 200


def test_a_mapping_of_very_many_keys_is_one_wrong_hint() -> None:
    found = read_hints({"hybrid_pages": {"retain": 60} | {f"k{n}": 1 for n in range(1000)}}, 64)
    assert found == read_hints(None, 64)
    assert "found 1001" in str(found.errors[0]) and len(found.errors) == 1


def test_each_wrong_hint_is_counted(start: StartEngine) -> None:
    engine = start(extra=SMALL)
    kept = tokens(5 * N + 2, 1)
    engine.generate(kept, hints={"retain": 600, "priority": 99, "store": "no", "sessions": []})
    flood(engine)
    assert counters(engine)["refused_hints"] == 3
    assert visit(engine, kept) == 5 * N


def test_hints_are_recorded_and_sessions_are_not_told(start: StartEngine, tmp_path: Path) -> None:
    engine = start(extra=LARGE | {"trace_dir": str(tmp_path)})
    said = {"session": "Ada's chat", "retain": 60, "priority": -2, "store": False}
    engine.generate(tokens(2 * N, 1), hints=said)
    engine.generate(tokens(2 * N, 2), hints={"session": "Ada's chat"})
    engine.generate(tokens(2 * N, 3), hints={"session": "Ada's chat"}, salt="other")
    engine.generate(tokens(2 * N, 4), hints={"retain": 0, "store": True, "priority": 0})
    (path,) = tmp_path.iterdir()
    assert "Ada" not in path.read_text()
    first, second, salted, last = map(json.loads, path.read_text().splitlines()[1:])
    names = ("session", "retain", "priority", "store")
    assert [{key for key in names if key in row} for row in (first, second, last)] == [
        set(names),
        {"session"},
        set(),
    ]
    assert (first["retain"], first["priority"], first["store"]) == (60, -2, False)
    assert first["session"] == second["session"] != salted["session"]
    assert Trace.open(path).requests == 4


def test_every_hint_is_in_the_table_of_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "hints.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)
    assert rows == list(_CHECKS)
