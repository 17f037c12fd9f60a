"""Requests of `hybrid-pages verify --url`: each is restored from the one source that it names."""

from __future__ import annotations

from typing import Any

import pytest

from hybrid_pages.vllm.scheduler.requests.check import SALT
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_counts import counters, hits
from test_disk import PROMPT, Start, model, settled  # noqa: F401 (a fixture)
from test_disk import start as disk_start  # noqa: F401 (a fixture)

MINE = f"{SALT}0123"
DROP = {"verify": {"source": "own", "drop": True}}


def asked(engine: Engine, source: str, *, salt: str = MINE, prompt: Any = PROMPT, **more: Any):
    """What the answer says of a request with this source."""
    first = more.pop("stores", False)
    hints = {"verify": {"source": source, **more}, "store": first}
    result = engine.generate(prompt, salt=salt, hints=hints)
    return None if result.told is None else result.told["hybrid_pages"]


def everywhere(engine: Engine) -> Engine:
    """What was published is in every tier."""
    settled(engine)
    assert engine.half.connection.remote.settle(60)
    engine.cache.poll()
    return engine


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["gdn", "gdn-window", "attention-only"])
def test_each_source_gives_the_prompt_alone(
    disk_start: Start,  # noqa: F811
    name: str,
    asynchronous: bool,
    tmp_path: Any,
) -> None:
    extra = {"remote_url": (tmp_path / "shared").as_uri(), "remote_admit": "all"}
    engine = disk_start(shape=SHAPES[name], extra=extra, async_scheduling=asynchronous)
    users = engine.generate(PROMPT, salt="a user")
    cold = asked(engine, "own", stores=True)
    assert cold == {
        "source": "own",
        "hit_tokens": {},
        "loaded_bytes": 0,
        "failed": "",
        "block_tokens": N,
        "states": name != "attention-only",
        "tiers": ["host", "disk", "remote"],
        "engine": 0,
        "engines": 1,
    }
    assert asked(engine, "own")["hit_tokens"] == {"local": 4 * N}
    everywhere(engine)
    # In any order, and again, whatever the tiers before have by then.
    for source in ("host", "disk", "host", "remote", "host", "remote"):
        told = asked(engine, source)
        assert told["hit_tokens"] == {source: 4 * N}, source
        assert told["loaded_bytes"] > 0
        everywhere(engine)
    assert users.restored_tokens == 0
    engine.check_idle()


def test_users_keep_what_they_have(disk_start: Start) -> None:  # noqa: F811
    engine = disk_start()
    for salt in (None, "a user"):
        engine.generate(PROMPT, salt=salt)
    asked(engine, "own", stores=True)
    settled(engine)
    assert asked(engine, "disk", drop=True)["hit_tokens"] == {"disk": 4 * N}
    engine.forget_local()
    for salt in (None, "a user"):
        assert engine.generate(PROMPT, salt=salt).restored_tokens == 4 * N
    assert hits(engine)["host"] == 2 * 4 * N
    # What was dropped is nowhere.
    engine.forget_local()
    assert asked(engine, "host")["hit_tokens"] == {}
    assert asked(engine, "disk")["hit_tokens"] == {}
    engine.check_idle()


@pytest.mark.parametrize("salt", [None, "", "a user", SALT[:-1]])
def test_with_another_salt_it_says_and_moves_nothing(
    disk_start: Start,  # noqa: F811
    salt: str | None,
) -> None:
    engine = disk_start()
    engine.generate(PROMPT, salt=salt)
    settled(engine)
    for source in ("disk", "host", "own"):
        assert asked(engine, source, salt=salt, drop=True) is None
    assert hits(engine) == {"local": 3 * 4 * N}
    assert counters(engine)["refused_hints"] == 3
    engine.forget_local()
    assert engine.generate(PROMPT, salt=salt).restored_tokens == 4 * N
    assert hits(engine)["host"] == 4 * N
    engine.check_idle()


@pytest.mark.parametrize("bad", ["disk", {}, {"source": "moon"}, {"source": "disk", "drop": 1}])
def test_one_that_makes_no_sense_is_ignored(start: StartEngine, bad: Any) -> None:
    engine = start()
    result = engine.generate(PROMPT, salt=MINE, hints={"verify": bad, "store": False})
    assert result.told is None
    assert counters(engine)["refused_hints"] == 1
    engine.forget_local()
    assert engine.generate(PROMPT, salt=MINE).restored_tokens == 0  # its other hints count


def test_a_load_that_fails_is_told(start: StartEngine, script: Any) -> None:
    engine = start()
    asked(engine, "own", stores=True)
    script.fault = lambda kind: "torn" if kind == "load" else None
    told = asked(engine, "host")
    assert told["failed"] and told["hit_tokens"] == {}


def test_a_tier_that_lacks_a_part_takes_nothing_over(disk_start: Start) -> None:  # noqa: F811
    engine = disk_start()
    asked(engine, "own", prompt=PROMPT[: 2 * N + 1], stores=True)
    settled(engine)
    engine.half.connection.disk.close()  # it takes nothing more
    asked(engine, "own", prompt=tokens(4 * N + 3), stores=True)
    assert asked(engine, "disk")["hit_tokens"] == {"host": 4 * N}
    engine.check_idle()


@pytest.mark.parametrize("mode", ["adaptive", "all"])
def test_a_run_leaves_nothing_behind(
    disk_start: Start,  # noqa: F811
    mode: str,
    tmp_path: Any,
) -> None:
    extra = {"remote_url": (tmp_path / "shared").as_uri(), "remote_admit": "all"}
    engine = disk_start(extra=extra | {"checkpoint_mode": mode})
    answer: list[int] = []
    for salt in (f"{MINE}a", f"{MINE}b"):
        asked(engine, "own", salt=salt, stores=True)
        asked(engine, "own", salt=salt)
    hints = {"verify": {"source": "own"}}
    answer = engine.generate(PROMPT, 3, salt=f"{MINE}half", hints=hints).tokens
    for source in ("host", "disk", "remote"):
        everywhere(engine)
        assert asked(engine, source, salt=f"{MINE}a")["hit_tokens"] == {source: 4 * N}
        rest = asked(engine, source, salt=f"{MINE}half", prompt=PROMPT + answer)
        assert rest["hit_tokens"] == {source: 4 * N + 5}
    for name, more in (("a", []), ("b", []), ("half", answer)):
        engine.generate(PROMPT + more, 1, salt=MINE + name, hints={**DROP, "store": False})
    stats = engine.cache.stats()
    assert (stats["pages"], stats["checkpoints"], stats["windows"]) == (0, 0, 0)
    engine.check_idle()
