"""KV events beside a store that engines share: what is there alone is announced by nobody."""

# ruff: noqa: F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.engine import Engine
from simulation.router import Router
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_counts import counters, hits
from test_remote import Start, model, shared, shares, start  # noqa: F401 (fixtures)

PROMPT = tokens(4 * N + 3)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    yield router
    router.close()


def depths(router: Router, engine: Engine) -> list[int]:
    """How deep a router takes the host and the disk to reach."""
    shares(engine)
    engine.generate(tokens(3))  # a prompt of no block: events go out with a step
    router.hear(engine)
    request = engine._request(PROMPT)
    return [router.predict(engine, request, medium) for medium in ("CPU", "STORAGE")]


@pytest.mark.parametrize("disk", [False, True])
def test_the_host_and_the_disk_are_announced_and_the_store_is_not(
    start: Start, router: Router, tmp_path: Path, disk: bool
) -> None:
    first = start()
    first.generate(PROMPT)
    shares(first)
    extra = {"disk_path": str(tmp_path / "disk"), "disk_gb": 0.05} if disk else {}
    engine = start(events=router.config, extra=extra | {"host_gb": 0.00006})
    own = tokens(N + 3, 1)
    engine.generate(own)
    assert engine.half._requests == {}
    assert depths(router, engine) == [0, 0]
    # Read from the store, it is in the host, and is announced as that.
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    assert hits(engine)["remote"] == 4 * N
    assert depths(router, engine) == [4 * N, 0]
    # It leaves the host, and only the store has it.
    for seed in range(2, 14):
        engine.generate(tokens(4 * N + 3, seed))
        shares(engine)
    assert depths(router, engine) == [0, 0]
    engine.forget_local()
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    assert "failures:event" not in counters(engine)
    engine.check_idle()
