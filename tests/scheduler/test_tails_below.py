"""Tails that only a disk has: restored whole, in waves, early, and after damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from planted_tails import plant
from simulation.config import SimulatedHybridForCausalLM, save_model
from simulation.engine import Engine
from simulation.function import Prefix
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_counts import counters, hits
from test_disk import Start, model, settled, start  # noqa: F401 (fixtures)
from test_early import BUSY, Holds
from test_identity import safetensors
from test_tails import _patterns
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


# Known report: llama.cpp#25913.
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["gdn", "gdn-window", "mamba2", "gdn-one-head"])
def test_ends_of_answers_outlive_the_engine(start: Start, name: str, ranks: int) -> None:  # noqa: F811
    options = {"shape": SHAPES[name], "ranks": ranks, "extra": {"disk_gb": 0.1, "host_gb": 0.008}}
    engine = start(**options)
    n = engine.half.connection.grid.block_tokens
    lengths = (3, 20, n + 5, 2 * n - 1)
    said = [engine.generate(tokens(each, each), 4).request.all_token_ids for each in lengths]
    engine = start(**options)
    for text in said:
        assert engine.generate([*text, 5, 6, 7], 2).restored_tokens == len(text) - 1
    assert hits(engine) == {"disk": sum(lengths) + 3 * len(lengths)}
    engine.check_idle()


def test_a_model_with_other_weights_has_other_tails(start: Start, tmp_path: Path) -> None:  # noqa: F811
    said = start().generate(tokens(20), 4).request.all_token_ids
    other = tmp_path / "other"
    other.mkdir()
    save_model(other, SimulatedHybridForCausalLM.__name__)
    safetensors(other / "model.safetensors", bytes([1]) * 1000)
    for name, expected in ((other, 0), (tmp_path / "model", 23)):
        engine = start(model=name)
        assert engine.generate([*said, 1], 2).restored_tokens == expected
        engine.check_idle()


def test_a_damaged_tail_costs_a_shallower_resume(start: Start, tmp_path: Path) -> None:  # noqa: F811
    engine, end = start(), 2 * N + 6
    first = engine.generate(LONG[: 2 * N + 1], 6).request
    prefix = Prefix(engine.origin(first), first.all_token_ids)
    last = [each[1:] for each in _patterns(engine, prefix, range(end - 1, end))]
    settled(engine)
    start().close()
    damaged = 0
    for path in (tmp_path / "disk").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for each in last:
            damaged += data.count(each)
            data = data.replace(each, bytes([each[0] ^ 1]) + each[1:])
        if data:
            path.write_bytes(data)
    assert damaged
    engine = start()
    result = engine.generate([*first.all_token_ids, 1, 2], 2)
    assert result.restored_tokens == 2 * N + 1  # the end of its prompt
    assert counters(engine)["disk_failures:checksum"] == 1
    engine.check_idle()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_tail_is_read_while_its_request_waits_for_its_turn(
    start: Start,  # noqa: F811
    cancelled: bool,
) -> None:
    said = start().generate(tokens(20), 4).request.all_token_ids
    engine = start(requests=1)
    holds = Holds(engine)
    running, waiting = engine.add(BUSY, 40), engine.add([*said, 1, 2])
    while "early_restores" not in counters(engine):
        assert not running.done, "it was asked for too late"
        engine.step()
    if cancelled:
        engine.abort(waiting)
        assert holds.count == 1 and not engine.half._early.asks
    engine.run()
    assert (waiting.restored_tokens, holds.count) == (0 if cancelled else 23, 0)
    engine.check_idle()
