"""Two engine cores of a dense model, as `--data-parallel-size 2` starts them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("serve_parallel.py")
N = 128  # vLLM's default block on a CPU
LENGTHS = (500, 900, 1200)
WHOLE = [(length - 1) // N * N for length in LENGTHS]
# A prompt that comes again leaves a state before its last token, if that saves 16 tokens.
RESTORED = [499, 896, 1199]


# tests/scheduler/test_data_parallel.py proves the same without engines.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def parallel(model) -> tuple[dict, str]:
    """What each engine core answered, alone and at once; and what all processes said."""
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, model("qwen3.5-tp2"), *map(str, LENGTHS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0 and lines, done.stdout[-5000:] + done.stderr[-5000:]
    return json.loads(lines[-1].removeprefix("FOUND ")), done.stdout + done.stderr


def cached(answers: list) -> list[int]:
    return [answer[0] for answer in answers]


def test_each_engine_core_restores_what_it_has_stored(parallel):
    found, _ = parallel
    for core in range(2):
        assert cached(found["cold"][core]) == [0] * len(LENGTHS)
        assert cached(found["local"][core]) == WHOLE
        assert cached(found["restored"][core]) == RESTORED
        assert cached(found["forgotten"][core]) == [0] * len(LENGTHS)


def test_what_is_restored_equals_vllm_s_own_local_hit(parallel):
    found, _ = parallel
    restored, local = (
        [[answer[1:] for answer in answers] for answers in found[kind]]
        for kind in ("restored", "local")
    )
    assert restored == local
    assert restored[0] != restored[1]


def test_an_engine_core_has_nothing_of_the_other_s(parallel):
    found, _ = parallel
    assert cached(found["crossed"]) == [0, 0]


def test_requests_that_vllm_spreads_itself_are_answered(parallel):
    """A prompt is restored by the engine core that has it, and computed by the other."""
    found, _ = parallel
    for answer, restored in zip(found["at once"], RESTORED * 2, strict=True):
        assert answer[0] in (0, restored)
        assert len(answer[1]) == 6


def test_metrics_tell_the_engine_cores_apart(parallel):
    found, _ = parallel
    metrics = {(engine, name, *labels): value for engine, name, value, *labels in found["metrics"]}
    assert {engine for engine, *_ in metrics} == {"0", "1"}
    assert not [key for key in metrics if key[1] == "failures"]
    for engine in "01":
        assert metrics[engine, "hit_tokens", "local"] == sum(WHOLE)
        assert metrics[engine, "hit_tokens", "host"] >= sum(RESTORED)
        assert metrics[engine, "stored_entries", "checkpoints"] >= len(LENGTHS)
        # For each prompt, the one that it was restored from and more.
        assert metrics[engine, "resident_entries", "checkpoints"] >= len(LENGTHS)
        assert metrics[engine, "leased_bytes"] == 0


def test_each_start_line_says_what_the_machine_needs(parallel):
    _, said = parallel
    lines = re.findall(
        r"EngineCore_DP(\d).*hybrid-pages: engine core (\d) \(of 2, from 0 on\), this machine "
        r"needs 2 x 0\.1 GiB = 0\.2 GiB; N=128",
        said,
    )
    assert sorted(lines) == [("0", "0"), ("1", "1")]
