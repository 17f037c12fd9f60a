"""Scheduler and workers in processes of their own, as vLLM runs them by default."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("serve_once.py")


def found(model: Path, ranks: int) -> dict:
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, model, str(ranks)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0 and lines, done.stdout[-5000:] + done.stderr[-5000:]
    return json.loads(lines[-1].removeprefix("FOUND "))


@pytest.mark.parametrize(("name", "ranks"), [("qwen3.5", 1), ("qwen3.5-tp2", 2)])
def test_what_other_processes_store_is_restored(model, name, ranks):
    result = found(model(name), ranks)
    cached = {key: [request[0] for request in result[key]] for key in result if key != "metrics"}
    whole = cached["local"][0]
    assert whole >= 128
    assert cached == {
        "cold": [0, 0],
        "local": [whole, whole],
        "restored": [whole, whole],
        "forgotten": [0, 0],
    }
    assert result["restored"] == result["local"]
    metrics = result["metrics"]
    assert metrics["vllm:hybrid_pages_hit_tokens:host"] == 2 * whole
    assert metrics["vllm:hybrid_pages_hit_tokens:local"] == 2 * whole
    assert metrics["vllm:hybrid_pages_loaded_bytes"] > 0
    assert metrics["vllm:hybrid_pages_stored_entries:checkpoints"] >= 2
    assert not any("failures" in key for key in metrics)
