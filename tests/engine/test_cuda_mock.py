"""A real engine whose caches lie in the memory of a device that only pretends."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "scheduler"))

from harness import Engine, tokens


@pytest.fixture(scope="module")
def engine(start: Callable[..., Engine]) -> Iterator[Engine]:
    from simulation.device import pretended

    with (
        pytest.MonkeyPatch.context() as patch,
        pretended(patch) as driver,
    ):
        engine = start("qwen3.5", {"verify_on_load": True})
        driver.delay(500)
        yield engine
        engine.shutdown()


def test_what_comes_back_from_a_device_gives_vllms_own_text(engine: Engine) -> None:
    from hybrid_pages.vllm.worker.copy_engine import StreamEngine

    prompt = tokens("device", 3 * engine.N + 5)
    (cold,) = engine.finish([engine.submit(prompt)])
    assert cold.host == 0
    (local,) = engine.finish([engine.submit(prompt)])
    assert (local.local, local.host) == (3 * engine.N, 0)
    assert engine.llm.reset_prefix_cache()
    (restored,) = engine.finish([engine.submit(prompt)])
    assert (restored.local, restored.host) == (0, 3 * engine.N)
    assert restored == local
    assert isinstance(engine.worker.engine, StreamEngine)
