"""Tails that only a disk has: restored whole, in waves, and after damage."""

from __future__ import annotations

import pytest

from planted_tails import plant
from simulation.engine import Engine
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_counts import counters, hits
from test_disk import Start, model, settled, start  # noqa: F401 (fixtures)
from test_waves import SMALL

LONG = tokens(22 * N)


def below(start: Start, end: int, **options: object) -> Engine:  # noqa: F811
    """An engine, after another one has left a tail on the disk."""
    engine = start(blocks=200)
    engine.generate(LONG[: end // N * N + 1], 1)
    plant(engine, LONG, end)
    settled(engine)
    return start(blocks=200, **options)


@pytest.mark.parametrize("end", [5, 2 * N + 7])
def test_a_tail_is_restored_from_a_disk(start: Start, end: int) -> None:  # noqa: F811
    engine = below(start, end)
    assert engine.generate(LONG[: end + 2], 1).restored_tokens == end
    assert hits(engine) == {"disk": end}
    assert counters(engine)["tail_tokens"] == end % N
    engine.check_idle()
    engine.forget_local()
    assert engine.generate(LONG[: end + 1], 1).restored_tokens == end  # it is in the host now
    engine.check_idle()


def test_the_last_wave_has_the_tail(start: Start) -> None:  # noqa: F811
    end = 20 * N + 7
    engine = below(start, end, extra=SMALL)
    assert engine.generate(LONG[: end + 3], 1).restored_tokens == end
    assert engine.cache.restores()["waves"] > 2
    engine.check_idle()


def test_what_vllm_has_is_not_read_for_a_tail(start: Start) -> None:  # noqa: F811
    engine = below(start, 12 * N + 7)
    engine.generate(LONG[: 8 * N], 1)
    before = counters(engine).get("disk_entries:read", 0)
    result = engine.generate(LONG[: 12 * N + 9], 1)
    assert result.local_tokens >= 7 * N
    assert result.local_tokens + result.restored_tokens == 12 * N + 7
    assert 0 < counters(engine)["disk_entries:read"] - before <= 5 + 2
    engine.check_idle()
