"""The connector over a disk that hangs. `test_disk_hangs.py` runs this file in processes of its
own, in which calls to the disk can be held."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from hybrid_pages.vllm.scheduler.loads.restores import Restores
from simulation.engine import Engine, Result
from simulation.hanging import Hanging
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_counts import counters, hits
from test_disk import Start, model, settled, start  # noqa: F401 (fixtures)
from test_waves import LONG, SMALL

PROMPTS = [tokens(4 * N + 3, seed) for seed in range(8)]
# Longer than any read that does not hang.
DEADLINE = {"disk_deadline_ms": 1000}
LIMIT_SECONDS = 60.0
MANY_STEPS = 10_000_000


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.end()


def on_disk(start: Start, *prompts: list[int], small: bool = False) -> Engine:  # noqa: F811
    """An engine with nothing in its host, on a disk that has the prompts."""
    engine = start(blocks=200)
    for prompt in prompts:
        settled(engine).generate(prompt)
    settled(engine)
    engine = start(blocks=200, extra=DEADLINE | (SMALL if small else {}))
    engine.generate(tokens(N + 1, 99))  # the ranks have reported
    return settled(engine)


def wait(engine: Engine, what: str, until: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not until():
        assert time.monotonic() < end, f"waited for {what}: {engine.half.connection.disk.stats()}"
        engine.cache.poll()
        time.sleep(0.001)


def is_out(engine: Engine) -> bool:
    return bool(engine.half.connection.disk.stats()["out"])


def run(engine: Engine, *prompts: list[int]) -> list[Result]:
    results = [engine.add(prompt) for prompt in prompts]
    engine.run(MANY_STEPS)
    for result in results:
        result.check()
    return results


def back(engine: Engine, hanging: Hanging) -> None:
    """The disk answers again."""
    hanging.end()
    wait(engine, "the end of the outage", lambda: not is_out(engine))
    wait(engine, "the end of the calls", lambda: not hanging.waiting())


def test_a_hang_costs_a_recompute_and_then_nobody_waits(
    start: Start,  # noqa: F811
    hanging: Hanging,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = on_disk(start, *PROMPTS)
    hanging.begin()
    (result,) = run(engine, PROMPTS[0])
    assert result.restored_tokens == 0
    assert hanging.waiting() > 0, "no call was held"
    wait(engine, "an outage", lambda: is_out(engine))
    asked = []
    monkeypatch.setattr(Restores, "_may_wait", lambda *args, **options: asked.append(args))
    for result in run(engine, *PROMPTS[1:4]):
        assert result.restored_tokens == 0
    assert not asked
    assert engine.half.stats()["gauges"]["disk_out"] == 1
    monkeypatch.undo()

    back(engine, hanging)
    (result,) = run(engine, PROMPTS[4])
    assert result.restored_tokens == 4 * N
    assert hits(engine)["disk"] == 4 * N
    assert counters(engine)["disk_outages"] == 1
    assert engine.half.stats()["gauges"]["disk_out"] == 0
    engine.check_idle()
    # The outage has cost no entries.
    engine = start(blocks=200)
    for result in run(engine, *PROMPTS):
        assert result.restored_tokens == 4 * N
    engine.check_idle()


def test_prompts_at_once_wait_for_one_hang(start: Start, hanging: Hanging) -> None:  # noqa: F811
    engine = on_disk(start, *PROMPTS)
    hanging.begin()
    for result in run(engine, *PROMPTS):
        assert result.restored_tokens == 0
    wait(engine, "an outage", lambda: is_out(engine))
    assert counters(engine)["disk_outages"] == 1
    back(engine, hanging)
    engine.check_idle()


def test_a_hang_between_waves_costs_a_recompute(
    start: Start,  # noqa: F811
    hanging: Hanging,
) -> None:
    engine = on_disk(start, LONG, PROMPTS[0], small=True)
    result = engine.add(LONG)
    while not engine.half.connection.loads._in_waves:
        engine.step()
    hanging.begin()
    engine.run(MANY_STEPS)
    result.check()
    assert sum(count for key, count in counters(engine).items() if key.startswith("failures")) == 1
    wait(engine, "an outage", lambda: is_out(engine))
    back(engine, hanging)
    engine.forget_local()
    (result,) = run(engine, LONG)
    assert result.restored_tokens == 20 * N
    engine.check_idle()


def test_what_is_computed_in_an_outage_is_written_when_it_is_computed_again(
    start: Start,  # noqa: F811
    hanging: Hanging,
) -> None:
    new = tokens(4 * N + 3, 77)
    engine = on_disk(start, PROMPTS[0])
    hanging.begin()
    run(engine, new)
    wait(engine, "an outage", lambda: is_out(engine))
    run(engine, tokens(4 * N + 3, 78))
    assert engine.half.connection.disk.stats()["dropped"] > 0
    back(engine, hanging)
    engine.check_idle()
    engine = start(blocks=200)
    run(engine, new)
    settled(engine)
    engine = start(blocks=200)
    (result,) = run(engine, new)
    assert result.restored_tokens == 4 * N
    engine.check_idle()
