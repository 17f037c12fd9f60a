"""Two engines share what they computed through a real Mooncake Store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_mooncake import MASTER, Store

pytest.importorskip("vllm", reason="needs vLLM")
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "serve_mooncake.py"
N = 128  # vLLM's default block on a CPU
LENGTHS = (500, 900, 1536)


@pytest.fixture(scope="module")
def model() -> Path:
    """The folder of a tiny hybrid model."""
    sys.path.append(str(ROOT / "tests" / "engine"))
    from families import MODELS
    from hybrid_pages.demo.models import ensure

    return ensure("qwen3.5-tp2", ROOT / ".cache", MODELS)


class Engine:
    """An engine that has answered its prompts, and lives until it is closed."""

    def __init__(self, model: Path, log: Path) -> None:
        environment = {
            **os.environ,
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        }
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, model, f"mooncake://{MASTER}", *map(str, LENGTHS)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        for line in self.process.stdout:
            if line.startswith("FOUND "):
                found = json.loads(line.removeprefix("FOUND "))
                self.answers, self.metrics = found["answers"], found["metrics"]
                return
        self.close()
        raise AssertionError("the engine ended:\n" + log.read_text()[-5000:])

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


def test_an_engine_serves_what_another_one_computed(model, tmp_path):
    whole = [(length - 1) // N * N for length in LENGTHS]
    with Store(tmp_path) as store:
        store.add(512 << 20)
        first = Engine(model, tmp_path / "first")
        try:
            second = Engine(model, tmp_path / "second")
            second.close()
        finally:
            first.close()
    assert [cached for cached, *_ in first.answers] == [0] * len(LENGTHS)
    assert [cached for cached, *_ in second.answers] == whole
    # To the last digit of every log-probability.
    assert [answer for _, *answer in second.answers] == [answer for _, *answer in first.answers]
    assert first.metrics["remote_entries:written"] > 0
    assert second.metrics["remote_entries:read"] > 0
    assert second.metrics["hit_tokens:remote"] == sum(whole)
    for engine in (first, second):
        failures = {name: n for name, n in engine.metrics.items() if "failures" in name and n}
        assert not failures


def test_verify_restores_from_it_what_the_engine_computes_itself(
    model, tmp_path, monkeypatch, capfd
):
    from hybrid_pages import cli

    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    transfer = {
        "kv_connector": "HybridPagesConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "host_gb": 0.1,
            "remote_url": f"mooncake://{MASTER}",
            "remote_deadline_ms": 60_000,  # busy cores are slow
        },
    }
    flags = ["--skip-tokenizer-init", "--enforce-eager", "--block-size", "32"]
    flags += ["--max-model-len", "2048", "--kv-cache-memory-bytes", str(64 << 20)]
    flags += ["--kv-transfer-config", json.dumps(transfer)]
    with Store(tmp_path) as store:
        store.add(512 << 20)
        status = cli.main(["verify", str(model), "--json", "-", "--", *flags])
    printed = capfd.readouterr()
    found = json.loads(printed.out)
    assert (status, found["problems"]) == (0, []), found["prompts"]
    assert found["tiers"] == ["host", "remote"]
    for prompt in found["prompts"]:
        for tier in prompt["tiers"].values():
            assert tier["verdict"] == "equal"
            assert tier["restored_tokens"] >= prompt["local_hit_tokens"] > 0
