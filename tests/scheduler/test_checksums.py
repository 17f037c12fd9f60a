"""The setting `checksum`: what stores compute and what loads compare, by one flipped bit."""

from __future__ import annotations

import random

import pytest

from hybrid_pages.vllm.worker.half import WorkerHalf
from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.workload import Workload

PROMPT = Workload(random.Random(5)).fresh(6 * N + 1)
MODES = ["off", "store", "verify"]


def failures(engine: Engine) -> dict[str, float]:
    counters = engine.connector.scheduler.stats()["counters"]
    return {key: count for key, count in counters.items() if key.startswith("failures")}


def flip_a_bit(engine: Engine, script: Script) -> None:
    """In the middle of the first slot of the second page that was stored."""
    entries = [entry for job in script.of("store") for entry in job if entry[0] == 0]
    slot = entries[1][1][0]
    arena = engine.connector.scheduler.connection.arena
    found = bytearray(arena.read(slot))
    found[len(found) // 2] ^= 1
    arena.write(slot, bytes(found))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_mode_restores(mode: str, ranks: int, start: StartEngine, script: Script) -> None:
    engine = start(ranks=ranks, extra={"checksum": mode})
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    sums = [entry[3] for job in script.of("load") for entry in job]
    assert sums and all((value is not None) == (mode == "verify") for value in sums)
    assert failures(engine) == {}
    engine.check_idle()


@pytest.mark.parametrize("mode", MODES)
def test_entries_have_checksums_unless_they_are_off(
    mode: str, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    expected = WorkerHalf._expected

    def note(self: WorkerHalf, checksums: list[int]) -> int | None:
        seen.append(checksums)
        return expected(self, checksums)

    monkeypatch.setattr(WorkerHalf, "_expected", note)
    engine = start(ranks=2, extra={"checksum": mode})
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    assert seen and all(len(sums) == (0 if mode == "off" else 2) for sums in seen)


@pytest.mark.parametrize("extra", [{"checksum": "verify"}, {"verify_on_load": True}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_flipped_bit_is_found_and_the_request_recomputed(
    extra: dict[str, object], ranks: int, start: StartEngine, script: Script
) -> None:
    engine = start(ranks=ranks, extra=extra)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    flip_a_bit(engine, script)
    engine.generate(PROMPT)
    assert failures(engine) == {"failures:load": 1}
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N  # stored anew by the recompute
    engine.check_idle()


@pytest.mark.parametrize("mode", ["off", "store"])
def test_a_flipped_bit_is_not_looked_for_otherwise(
    mode: str, start: StartEngine, script: Script
) -> None:
    engine = start(extra={"checksum": mode})
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    flip_a_bit(engine, script)
    with pytest.raises(Mismatch, match="request r1, layer"):
        engine.generate(PROMPT)
