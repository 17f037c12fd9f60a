"""KV events of a disk: blocks that routers can count on after they have left the host."""

# ruff: noqa: F811 (fixtures are imported)

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.engine import Engine
from simulation.router import Router, attention
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.workload import Workload
from test_boundaries import tokens
from test_counts import counters
from test_disk import Start, model, settled, start  # noqa: F401 (fixtures)
from test_events import BUSY, ask, has_images

SMALL = {"host_gb": 0.00006}
PROMPT = tokens(4 * N + 3)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    yield router
    router.close()


def heard(router: Router, engine: Engine) -> None:
    """What is on the disk has been published."""
    settled(engine)
    engine.generate(tokens(3))  # a prompt of no block: events go out with a step
    router.hear(engine)
    router.check()


def depth(router: Router, engine: Engine, medium: str) -> int:
    return router.predict(engine, engine._request(PROMPT), medium)


def test_what_leaves_the_host_and_is_on_disk_stays_announced(start: Start, router: Router) -> None:
    engine = start(events=router.config, extra=SMALL)
    engine.generate(PROMPT)
    heard(router, engine)
    assert [depth(router, engine, medium) for medium in ("CPU", "STORAGE")] == [4 * N, 4 * N]
    for seed in range(1, 12):
        settled(engine).generate(tokens(4 * N + 3, seed))
    heard(router, engine)
    assert [depth(router, engine, medium) for medium in ("CPU", "STORAGE")] == [0, 4 * N]
    engine.forget_local()
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    heard(router, engine)
    assert depth(router, engine, "CPU") == 4 * N
    assert "failures:event" not in counters(engine)


def test_what_an_earlier_process_left_is_announced_when_it_is_found(
    start: Start, router: Router
) -> None:
    start().generate(PROMPT)
    engine = start(events=router.config)
    heard(router, engine)
    assert depth(router, engine, "STORAGE") == 0  # nobody has asked for it
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    heard(router, engine)
    assert [depth(router, engine, medium) for medium in ("CPU", "STORAGE")] == [4 * N, 4 * N]
    assert "failures:event" not in counters(engine)


def test_routers_that_do_not_know_disks_hear_nothing_of_them(start: Start, router: Router) -> None:
    engine = start(events=router.config, extra={"disk_events": False})
    engine.generate(PROMPT)
    heard(router, engine)
    assert [depth(router, engine, medium) for medium in ("CPU", "STORAGE")] == [4 * N, 0]


def test_a_reset_removes_what_is_on_disk(start: Start, router: Router) -> None:
    engine = start(events=router.config)
    engine.generate(PROMPT)
    heard(router, engine)
    assert engine.reset_prefix_cache()
    heard(router, engine)
    assert depth(router, engine, "STORAGE") == 4 * N
    assert engine.reset_prefix_cache(reset_connector=True)
    heard(router, engine)
    assert depth(router, engine, "STORAGE") == 0


@pytest.mark.parametrize("name", ["gdn", "attention-only", "kda-exports"])
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_what_a_disk_announces_is_what_it_restores(
    start: Start, router: Router, name: str, asynchronous: bool
) -> None:
    engine = start(
        shape=SHAPES[name],
        events=router.config,
        async_scheduling=asynchronous,
        in_process=name == "kda-exports",
        extra={"host_gb": 0.0001 if name == "attention-only" else 0.0003, "disk_gb": 0.002},
    )
    workload = Workload(random.Random(name), BUSY)
    [group, *_] = attention(engine)
    probed = 0
    for round_ in range(5):
        workload.run(engine, 12)
        for at in range(4):
            assert engine.reset_prefix_cache()
            heard(router, engine)
            paths = router.leaves(group, "STORAGE")
            paths = [path for path in paths if not has_images(path)]
            if not paths:
                break
            path = paths[(7 * round_ + at) % len(paths)]
            result = ask(engine, path, 1 + at * N // 2, seed=100 * round_ + at)
            assert result.restored_tokens == len(path) * len(path[0].tokens)
            probed += 1
    assert probed > 6
    assert "failures:event" not in counters(engine)
    engine.check_idle()
