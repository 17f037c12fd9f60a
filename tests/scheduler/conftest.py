"""Engines that end with their test, of a vLLM that `vllm_environment` prepares."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import vllm_environment  # noqa: F401 - before vLLM

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import pytest
import vllm
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging_if_needed

from hybrid_pages.adapter import admission
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.worker import copy_engine
from simulation.copies import Copies, Script
from simulation.engine import Engine, StartEngine, connector
from simulation.shapes import GDN, Shape


def pytest_report_header() -> str:
    return f"vllm: {vllm.__version__} from {os.path.dirname(vllm.__file__)}"


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """pytest's own listens to the root, and vLLM keeps records from there once an engine runs."""
    configure_logging_if_needed(LoggingConfig())  # the first engine would take our handler away
    ours = logging.getLogger("vllm.hybrid_pages")
    monkeypatch.setattr(ours, "propagate", False)
    monkeypatch.setattr(ours, "handlers", [*ours.handlers, caplog.handler])
    return caplog


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """The script for the copies of every engine of this test."""
    script = Script()
    monkeypatch.setattr(copy_engine, "HostEngine", partial(Copies, script))
    return script


@pytest.fixture
def seconds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the policy, each request arrives a second after the one before.

    `reuse` learns how likely a use is at each age. In a flood that is over within milliseconds, the
    oldest prompt has an age of which nothing was learned yet, so on a busy machine it may stay.
    """
    first = time.monotonic_ns()
    seconds = count(1)
    clock = SimpleNamespace(monotonic_ns=lambda: first + next(seconds) * 10**9)
    monkeypatch.setattr(admission, "time", clock)


@pytest.fixture
def not_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines do not know that they have no other connector: the ranks report with a step, and not
    when the engine starts."""
    monkeypatch.setattr(versions, "is_outermost", lambda transfer: False)


@pytest.fixture
def start(script: Script) -> Iterator[StartEngine]:
    """Starts engines with the connector; keyword arguments are Engine's, `extra` its settings."""
    engines: list[Engine] = []

    def start(shape: Shape = GDN, *, extra: dict[str, Any] | None = None, **options: Any) -> Engine:
        engines.append(Engine(shape, transfer=connector(**(extra or {})), **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def ready(start: StartEngine) -> StartEngine:
    """Starts engines whose ranks have reported: then the first request may have tails, too."""

    def ready(*given: Any, **options: Any) -> Engine:
        engine = start(*given, **options)
        engine.generate([1, 2], max_tokens=1, hints={"store": False})
        return engine

    return ready
