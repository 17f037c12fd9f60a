"""Scheduler and workers in processes of their own, as vLLM runs them by default."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("serve_once.py")


# Around boundaries of 384 tokens and of 128, vLLM's default on a CPU.
LENGTHS = (500, 1536, 2700)


ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# With a /dev/shm of its own, of which it says in the end what is left there, but for what vLLM's
# ranks on CPUs with AVX-512 talk through: a killed one leaves that.
APART = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
SHARED = (
    'mount -t tmpfs none /dev/shm && "$@"; echo "ENDED $? $(ls -A /dev/shm | grep -v ^vllm_dist_)"'
)


def found(model: Path, ranks: str) -> dict:
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, SCRIPT, model, ranks, *map(str, LENGTHS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0 and lines, done.stdout[-5000:] + done.stderr[-5000:]
    return json.loads(lines[-1].removeprefix("FOUND "))


@pytest.mark.parametrize(
    ("name", "ranks", "n"),
    [
        pytest.param("qwen3.5-n384", "1", 384, marks=pytest.mark.long),
        ("qwen3.5-tp2", "2", 128),
        # Two stages, of which the first has no attention.
        pytest.param("qwen3.5-tp2", "1x2", 128, marks=pytest.mark.long),
        pytest.param("qwen3.5-tp2", "2x2", 128, marks=pytest.mark.long),
    ],
)
def test_what_other_processes_store_is_restored_up_to_the_last_token(model, name, ranks, n):
    """No block size is given: the engine core forgets the one that its scheduler was made with."""
    result = found(model(name), ranks)
    metrics = result.pop("metrics")
    cached = {key: [request[0] for request in requests] for key, requests in result.items()}
    whole = [(length - 1) // n * n for length in LENGTHS]
    # A prompt that comes again leaves a state before its last token, if that saves 16 tokens.
    restored = [
        length - 1 if length - 1 - block >= 16 else block
        for length, block in zip(LENGTHS, whole, strict=True)
    ]
    assert cached == {
        "cold": [0] * len(LENGTHS),
        "local": whole,
        "restored": restored,
        "forgotten": [0] * len(LENGTHS),
    }
    answers, locally = ([request[1:] for request in result[key]] for key in ("restored", "local"))
    assert answers == locally
    assert metrics["vllm:hybrid_pages_hit_tokens:host"] == sum(restored)
    assert metrics["vllm:hybrid_pages_hit_tokens:local"] == sum(whole)
    assert metrics["vllm:hybrid_pages_loaded_bytes:pages"] > 0
    assert metrics["vllm:hybrid_pages_stored_entries:checkpoints"] >= len(LENGTHS)
    assert not any("failures" in key for key in metrics)


def worker_of(session: int, name: str) -> int:
    """The process of a session that vLLM has given this name."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name in path.read_text() and os.getsid(int(path.parent.name)) == session:
                return int(path.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError(f"no process named {name}")


@pytest.mark.long
@pytest.mark.parametrize("stage", [0, 1])
def test_an_engine_ends_with_a_stage_that_is_killed(model, tmp_path, stage):
    """Nothing waits for it, and nothing stays in shared memory."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*APART, SHARED, "sh", "true"], capture_output=True).returncode
    ):
        pytest.skip("namespaces: expected unshare to make them, found that it can't")
    words = [sys.executable, SCRIPT, model("qwen3.5-tp2"), "1x2", *map(str, LENGTHS), "forever"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*APART, SHARED, "sh", *map(str, words)],
            env={**os.environ, **ENVIRONMENT},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 300
        while "FOUND " not in log.read_text() and process.poll() is None:
            assert time.monotonic() < end, log.read_text()[-5000:]
            time.sleep(0.2)
        time.sleep(1.5)  # in the middle of loads and stores
        assert process.poll() is None, log.read_text()[-5000:]
        os.kill(worker_of(process.pid, f"Worker_PP{stage}"), signal.SIGKILL)
        process.wait(120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    text = log.read_text()
    assert "EngineDeadError" in text, text[-5000:]
    assert text.splitlines()[-1] == "ENDED 1 ", text[-1000:]
