"""A server of made-up answers for `hybrid-pages verify --url`, and the command on it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hybrid_pages import cli
from hybrid_pages.verify import serving_main, serving_runs
from openai_server import serving

N = 16
WAITING = "vllm:num_requests_waiting"


class Served:
    """An engine whose answers follow from the prompt. It restores whole blocks."""

    def __init__(self) -> None:
        self.tiers, self.engines, self.most, self.logprobs = ["host", "disk"], 1, 4096, 20
        self.key, self.models, self.parent = "", ("m", "lora"), "m"
        self.tells, self.here, self.lags = True, 0, {"disk": 2}
        self.noise, self.cached_garbage = 0.0, 0.0
        self.spoiled: set[str] = set()
        self.once, self.tokenizes = False, True
        self.failed = ""
        self.metrics = {WAITING: 0.0, "vllm:num_requests_running": 0.0}
        self.known: set[tuple[int, str, tuple[int, ...]]] = set()
        self.bodies: list[dict[str, Any]] = []
        self.rng = random.Random(1)

    def exposed(self) -> str:
        return "".join(f"{name} {value}\n" for name, value in self.metrics.items())

    def post(self, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        if path == "/tokenize":
            if not self.tokenizes:
                return 500, {"error": {"message": "no tokenizer"}}
            tokens = [1 + ord(it) % 250 for it in body["prompt"]]
            return 200, {"tokens": tokens, "max_model_len": self.most}
        if body["logprobs"] > self.logprobs:
            error = f"Requested sample logprobs of 5, which is greater than {self.logprobs}"
            return 400, {"error": {"message": error}}
        return 200, self.answer(body, int(headers.get("X-data-parallel-rank") or self.here))

    def answer(self, body: dict[str, Any], rank: int) -> dict[str, Any]:
        self.bodies.append(body)
        prompt, salt = tuple(body["prompt"]), body["cache_salt"]
        hints = body["kv_transfer_params"]["hybrid_pages"]
        check = hints["verify"]
        source, whole = check["source"], (len(prompt) - 1) // N * N
        cached, found = 0, "local" if source == "own" else source
        known = any(
            engine == rank and of == salt and tokens[:whole] == prompt[:whole]
            for engine, of, tokens in self.known
        )
        if known and (source in ("own", *self.tiers)):
            cached = whole
            if self.lags.get(source, 0) > 0:
                self.lags[source] -= 1
                found = "host"
        if hints["store"]:
            self.known.add((rank, salt, prompt))
        if check.get("drop"):
            self.known = {each for each in self.known if each[1] != salt}
        failed = self.failed if source != "own" else ""
        tokens, likely = [], []
        text = list(prompt)
        spoiled = cached and source in self.spoiled
        if spoiled and self.once:
            self.spoiled.discard(source)
        for _ in range(body["max_tokens"]):
            rng = random.Random(repr(text))
            chosen = rng.randrange(300)
            value = -rng.random() - (0.25 if spoiled else 0) - self.rng.random() * self.noise
            value -= self.cached_garbage if cached else 0.0
            tokens.append(f"token_id:{chosen}")
            likely.append({f"token_id:{chosen}": value, "token_id:301": -3.0})
            text.append(chosen)
        said: dict[str, Any] = {
            "choices": [
                {
                    "logprobs": {
                        "tokens": tokens,
                        "token_logprobs": [
                            at[each] for each, at in zip(tokens, likely, strict=True)
                        ],
                        "top_logprobs": likely,
                    }
                }
            ]
        }
        if self.tells:
            told = {
                "source": source,
                "hit_tokens": {found: cached} if cached and not failed else {},
                "loaded_bytes": 100 * cached,
                "failed": failed,
                "block_tokens": N,
                "states": True,
                "tiers": self.tiers,
                "engine": rank if rank < self.engines else self.here,
                "engines": self.engines,
            }
            said["kv_transfer_params"] = {"hybrid_pages": told}
        return said


@pytest.fixture
def served(monkeypatch, tmp_path) -> Iterator[Any]:
    """The engine; its `run` runs the command there, and gives its status and the JSON report."""
    engine = Served()
    for name in ("TMPDIR", "no_proxy", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(serving_main.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(serving_runs.time, "sleep", lambda seconds: None)
    report = tmp_path / "report.json"

    def run(*words: str) -> tuple[int, Any]:
        status = cli.main(["verify", "--url", engine.url, "--json", str(report), *words])
        return status, json.loads(report.read_text())

    engine.run = run
    with serving(engine) as engine.url:
        yield engine
