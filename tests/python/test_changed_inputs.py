"""Settings, hints and models' configurations with values that make no sense are refused by name.

Nothing hangs, fails in another way or takes memory. `HYBRID_PAGES_EXECUTIONS` is how many of each
are tried, on all processors, and `HYBRID_PAGES_SEED` the first seed.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from typing import Any

import pytest

from hybrid_pages import HybridPagesError
from hybrid_pages.models.blocks import plan
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config
from hybrid_pages.models.families import READERS, layers_of
from hybrid_pages.vllm.config.settings import Settings, SettingsError
from hybrid_pages.vllm.scheduler.requests.check import SALT
from hybrid_pages.vllm.scheduler.requests.hints import RequestHints, read_hints
from model_configs import config_of
from prove_report import report

EXECUTIONS = int(os.environ.get("HYBRID_PAGES_EXECUTIONS", "2000"))
SEED = int(os.environ.get("HYBRID_PAGES_SEED", "0")) or os.getpid()
HANG_SECONDS = 20
GROWTH_KB = 128 << 10

EDGES = [edge + step for edge in (0, 2**31, 2**32, 2**53, 2**63, 2**64) for step in (-1, 0, 1)]
ODD: list[Any] = [
    *EDGES,
    -(2**63),
    10**400,
    *(0.0, -0.0, 0.5, 1.5, -1.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "a",
        "\0",
        "\ud800",
        "é" * 50,
        "None",
        "-1",
        "auto",
        "1e9",
        "fp8",
        "/",
        "s3://",
        "file://a",
    ),
    *(None, True, False, b"a", [], {}, [[]], [None], {"a": 1}, {"": {}}, [1] * 200, (), {1, 2}),
    *("lru", "reuse", "full_attention", "linear_attention", "sliding_attention", "bfloat16"),
]
JSON = [value for value in ODD if not isinstance(value, bytes | tuple | set)]
"""Of these, what a file can say."""
SETTINGS: list[dict[str, Any]] = [
    {},
    {"host_gb": 4, "policy": "reuse", "checkpoint_mode": "adaptive", "checkpoint_interval": 64},
    {"host_gb": 0.5, "disk_path": "/tmp/x", "disk_gb": 9.5, "disk_deadline_ms": 2000},
    {"host_gb": "auto", "remote_url": "s3://b/p", "remote_admit": "auto"},
    {"remote_url": "mooncake://h:1", "remote_deadline_ms": 50, "store_mode": "step"},
    {"checksum": "verify", "verify_on_load": True, "tenant_share": 0.5, "copy_threads": 4},
    {"disk_path": "/tmp/x", "disk_gb": 1, "encrypt_key": "env:NONE", "trace_dir": "/tmp/x"},
    {"huge_pages": "2M", "plant": "zero-state", "kernel_below": 9, "staging_mb": 8},
]
HINTS: list[dict[str, Any]] = [
    {},
    {"hybrid_pages": {"retain": 600, "priority": 3, "session": "s"}},
    {"hybrid_pages": {"store": False, "checkpoint_at": [10, 20], "expect_in": 4.5}},
    {"hybrid_pages": {"session": 7, "release": True}, "do_remote_prefill": True},
    {"hybrid_pages": {"verify": {"source": "disk", "drop": True}}},
]


def changed(rng: random.Random, value: Any, odd: list[Any]) -> Any:
    """A copy in which something is another, or gone, or new."""
    if rng.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return rng.choice(odd)
    copy = dict(value) if isinstance(value, dict) else list(value)
    at = rng.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    match rng.randrange(6):
        case 0:
            del copy[at]
        case 1 if isinstance(copy, dict):
            copy[rng.choice(["x", "", at + "s" if isinstance(at, str) else at])] = rng.choice(odd)
        case 2 if isinstance(copy, list):
            copy.insert(at, rng.choice(odd))
        case 3:
            copy[at] = rng.choice(odd)
        case _:
            copy[at] = changed(rng, copy[at], odd)
    return copy


def several(rng: random.Random, corpus: list[dict[str, Any]], odd: list[Any] = ODD) -> Any:
    """One of a corpus with up to three changes, and no change of the corpus."""
    value = rng.choice(corpus)
    for _ in range(rng.randrange(4)):
        after = changed(rng, value, odd)
        value = after if isinstance(after, dict) else value
    return value


def settings(rng: random.Random) -> None:
    """Settings are read, or refused with one kind of error."""
    given = several(rng, SETTINGS)
    try:
        Settings.parse(given)
    except SettingsError as error:
        assert str(error)


def hints(rng: random.Random) -> None:
    """Each hint is taken or ignored: no hint is an error."""
    salt = rng.choice([None, "", SALT + "1"])
    found = read_hints(several(rng, HINTS), rng.choice([0, 1, 1000, 2**31]), salt)
    assert isinstance(found, RequestHints)


_CONFIGS: list[dict[str, Any]] = []


def geometries(rng: random.Random) -> None:
    """A configuration is planned, or refused with one kind of error."""
    if not _CONFIGS:
        _CONFIGS.extend(config_of(name) for name in sorted(READERS))
    config, choices = several(rng, _CONFIGS, JSON), Choices(ranks=rng.choice([1, 1, 2, 3, 8, 512]))
    block = rng.choice([None, None, 16, 17, 0, 1 << 40])
    try:
        layers = layers_of(Config("config.json", config), choices)
        found = plan(
            layers, ranks=choices.ranks, device=rng.choice(["cuda", "cpu"]), block_size=block
        )
        assert found.block_tokens > 0 and found.page_bytes >= 0
        _ = found.checkpoint_bytes, found.bytes_per_token, found.kept_bytes(10_000)
    except HybridPagesError as error:
        assert str(error)


WHAT: dict[str, Callable[[random.Random], None]] = {
    "settings": settings,
    "hints": hints,
    "geometries": geometries,
}


def peak() -> int:
    """The most memory that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def execute(what: str, seeds: Sequence[int]) -> None:
    """Executes with each seed. What fails says its seed."""
    run, rng, warm = WHAT[what], random.Random(), 0
    try:
        for at, seed in enumerate(seeds):
            if at % 1000 == 0:  # An execution without an end ends the process, and is shown.
                faulthandler.dump_traceback_later(1000, exit=True, file=sys.__stderr__)
            if at == len(seeds) // 4:
                warm = peak()
            rng.seed(seed)
            began = time.monotonic()
            try:
                run(rng)
            except Exception as error:
                raise AssertionError(
                    f"{what}, seed {seed}: {type(error).__name__}: {error}"[:2000]
                ) from error
            took = time.monotonic() - began
            assert took < HANG_SECONDS, f"{what}, seed {seed}: an execution took {took:.1f} s"
    finally:
        faulthandler.cancel_dump_traceback_later()
    grown = peak() - warm
    assert grown < GROWTH_KB, f"{what}: memory grew by {grown} KiB"


@pytest.mark.timeout(0 if EXECUTIONS > 100_000 else 900)
@pytest.mark.parametrize("what", WHAT)
def test_changed_inputs_are_read_or_refused_by_name(what: str) -> None:
    corpus = deepcopy((SETTINGS, HINTS))
    seeds = range(SEED << 40, (SEED << 40) + EXECUTIONS)
    if EXECUTIONS <= 100_000:
        execute(what, seeds)
        assert corpus == (SETTINGS, HINTS)
    else:
        # One part for each processor: so the memory of a process is watched for as long as it runs.
        workers = os.cpu_count() or 1
        parts = [seeds[at::workers] for at in range(workers)]
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(execute, [what] * workers, parts))
    report({f"executions of {what}": EXECUTIONS})
