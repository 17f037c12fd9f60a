"""The environment of every process with a real engine, and the fixtures that start engines one at
a time."""

import os

# Before torch or vLLM are imported: one thread, one process, no compilation, no network.
os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
    PYTHONHASHSEED="0",
    TORCH_COMPILE_DISABLE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
)

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """The folder of a tiny model, by name."""
    from families import MODELS
    from hybrid_pages.demo.models import ensure

    return lambda name: ensure(name, CACHE, MODELS)


@pytest.fixture(scope="module")
def start(model: Callable[[str], Path]) -> Iterator[Callable[..., object]]:
    """Starts this module's engine; the one before it is shut down first."""
    from harness import Engine

    engines: list[Engine] = []

    def begin(name: str, settings: dict | None = None, **engine_args: object) -> Engine:
        end()
        engines.append(Engine(model(name), settings, **engine_args))
        return engines[-1]

    def end() -> None:
        while engines:
            engines.pop().shutdown()

    yield begin
    end()
