"""`hybrid-pages verify --url` on a server of made-up answers: what it compares, and how it ends."""

from __future__ import annotations

import fcntl
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hybrid_pages import cli
from hybrid_pages.scrape import parse
from hybrid_pages.verify import serving_main, serving_runs
from hybrid_pages.vllm.scheduler.requests.check import SALT
from openai_server import serving

N = 16
WAITING = "vllm:num_requests_waiting"


class Served:
    """An engine whose answers follow from the prompt. It restores whole blocks."""

    def __init__(self) -> None:
        self.tiers, self.engines, self.most, self.logprobs = ["host", "disk"], 1, 4096, 20
        self.key, self.models = "", ("m", "lora")
        self.tells, self.here, self.lags = True, 0, {"disk": 2}
        self.noise = 0.0
        self.spoiled: set[str] = set()
        self.once = False
        self.failed = ""
        self.metrics = {WAITING: 0.0, "vllm:num_requests_running": 0.0}
        self.known: set[tuple[int, str, tuple[int, ...]]] = set()
        self.bodies: list[dict[str, Any]] = []
        self.rng = random.Random(1)

    def exposed(self) -> str:
        return "".join(f"{name} {value}\n" for name, value in self.metrics.items())

    def post(self, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        if path == "/tokenize":
            return 200, {"tokens": [1 + ord(it) % 250 for it in body["prompt"]]}
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
    """The engine; its `run` runs the command there, and gives its status and report."""
    engine = Served()
    for name in ("TMPDIR", "no_proxy", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(serving_main.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(serving_runs.time, "sleep", lambda seconds: None)
    report = tmp_path / "report.json"

    def run(*words: str) -> tuple[int, Any]:
        report.unlink(missing_ok=True)
        status = cli.main(["verify", "--url", engine.url, "--json", str(report), *words])
        return status, json.loads(report.read_text()) if report.exists() else None

    engine.run = run
    with serving(engine) as engine.url:
        yield engine


def test_equal_answers_of_every_tier_are_status_0(served, tmp_path, capsys):
    status, found = served.run("--metrics", str(tmp_path / "verify.prom"))
    assert (status, found["problems"], found["tiers"]) == (0, [], ["host", "disk"])
    assert [each["tokens"] for each in found["prompts"]] == [2 * N + 1, 4 * N + N // 2]
    for prompt in found["prompts"]:
        for rows in (prompt["tiers"], prompt["rest_of_answer"]):
            assert {tier: row["verdict"] for tier, row in rows.items()} == {
                "host": "equal",
                "disk": "equal",
            }
    costs = found["costs"]
    assert costs["requests"] == len(served.bodies)
    assert costs["computed_tokens"] < costs["prompt_tokens"] / 2
    salts = {body["cache_salt"] for body in served.bodies}
    assert all(salt.startswith(SALT) and len(salt) > len(SALT) + 31 for salt in salts)
    assert not served.known, "everything is dropped in the end"
    metrics = parse((tmp_path / "verify.prom").read_text())
    assert metrics.sum("hybrid_pages_verify_status", url=served.url) == 0
    assert metrics.sum("hybrid_pages_verify_restored_tokens", tier="disk") > 0
    assert "Verified" in capsys.readouterr().out


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_difference_is_status_1_and_stays_in_the_metrics(served, tmp_path, tier):
    path = tmp_path / "verify.prom"
    assert served.run("--metrics", str(path))[0] == 0
    served.spoiled, served.lags = {tier}, {}
    status, found = served.run("--metrics", str(path))
    assert status == 1 and found["problems"][0].startswith(f"{tier}: 4 of 4 answers differ")
    assert not served.known
    served.key = "secret"
    assert served.run("--metrics", str(path)) == (2, None)  # it could not tell
    metrics = parse(path.read_text())
    assert metrics.sum("hybrid_pages_verify_status") == 2
    when = [
        metrics.sum(f"hybrid_pages_verify_{what}_timestamp_seconds")
        for what in ("equal", "different", "run")
    ]
    assert 0 < when[0] < when[1] < when[2]
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []


def test_noise_hides_a_difference_of_its_size_alone(served):
    served.noise = 0.2
    assert served.run()[0] == 0
    served.spoiled, served.noise = {"host"}, 0.02
    assert served.run()[0] == 1


@pytest.mark.parametrize(("running", "status"), [(1.0, 0), (0.0, 1)])
def test_what_differs_once_counts_if_nobody_else_was_served(served, running, status):
    """Beside others it is restored again; alone it is not."""
    served.spoiled, served.once = {"host"}, True
    served.metrics["vllm:num_requests_running"] = running
    found = served.run()
    assert found[0] == status
    assert bool(running) == any("may have run beside" in note for note in found[1]["notes"])


def test_a_load_that_fails_is_status_1(served):
    served.failed = "checksum"
    status, found = served.run()
    assert status == 1 and any("checksum" in problem for problem in found["problems"])


def test_a_tier_that_never_has_it_is_status_2(served):
    served.lags = {"disk": 10**6}
    status, found = served.run()
    assert status == 2
    assert found["problems"] == [
        "disk: nothing was restored: in time the disk had not taken all of a prompt: its metrics "
        "disk_entries, disk_failures and disk_out say why not"
    ]


def test_each_engine_core_is_asked(served):
    served.engines = 2
    status, found = served.run()
    assert status == 0
    assert [each["name"].partition(":")[0] for each in found["prompts"]] == ["engine 0"] * 2 + [
        "engine 1"
    ] * 2
    rows = [row for each in found["prompts"] for row in each["tiers"].values()]
    assert all(row["restored_tokens"] for row in rows)


def test_an_address_of_one_of_several_cores_says_so(served, monkeypatch):
    served.engines, served.here = 2, 1
    answer = served.answer
    monkeypatch.setattr(served, "answer", lambda body, rank: answer(body, 1))
    status, found = served.run()
    assert status == 0 and "engine core 1 of 2 alone" in found["notes"][0]


def test_cores_that_answer_by_turns_are_not_compared(served, monkeypatch, capsys):
    served.engines, answer = 2, served.answer
    monkeypatch.setattr(served, "answer", lambda body, _: answer(body, len(served.bodies) % 2))
    assert served.run() == (2, None)
    said = capsys.readouterr().err
    assert "expected an answer of engine core 0, found one of 1" in said and "by turns" in said


def test_fewer_log_probabilities_are_taken_where_there_are_no_more(served):
    served.logprobs = 0
    status, found = served.run()
    assert status == 0 and found["good"]
    served.spoiled = {"host"}
    assert served.run()[0] == 1


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"tells": False}, "HybridPagesConnector"),
        ({"key": "secret"}, "set VLLM_API_KEY"),
        ({"most": 17}, "expected less than --max-model-len 17, found 17"),
        ({"logprobs": -1}, "sample logprobs"),
    ],
)
def test_what_can_not_be_asked_is_status_2(served, capsys, trouble, said):
    vars(served).update(trouble)
    words = ["--tokens", "17"] if "most" in trouble else []
    assert served.run(*words) == (2, None)
    assert said in capsys.readouterr().err


def test_a_model_that_takes_no_block_is_status_2(served):
    served.most = N
    status, found = served.run("--tokens", "4")
    assert status == 2 and f"--max-model-len allows {N}" in found["problems"][0]


def test_another_name_and_a_key(served, monkeypatch, capsys):
    served.key = "secret"
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    status, found = served.run("lora")
    assert (status, found["model"]) == (0, "lora")
    assert {body["model"] for body in served.bodies} == {"lora"}
    assert served.run("other")[0] == 2
    assert "expected other, found m, lora" in capsys.readouterr().err


def test_two_runs_at_once_and_a_long_queue_compare_nothing(served, tmp_path, capsys, monkeypatch):
    served.run()
    (lock,) = tmp_path.glob("hybrid-pages-verify-*.lock")
    metrics = tmp_path / "verify.prom"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert served.run("--metrics", str(metrics)) == (3, None)
    assert "another run of verify" in capsys.readouterr().err
    monkeypatch.setattr(serving_runs, "_CALM_SECONDS", 0.0)
    served.metrics[WAITING] = 3.0
    count = len(served.bodies)
    assert served.run("--metrics", str(metrics)) == (3, None)
    assert "expected a moment without requests that wait" in capsys.readouterr().err
    assert len(served.bodies) == count and not metrics.exists()


def test_it_ends_in_time_and_drops_what_it_has(served, capsys, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(serving_runs.time, "monotonic", lambda: float(next(clock)))
    assert served.run("--timeout", "12") == (2, None)
    assert "expected all answers within 12 s (--timeout)" in capsys.readouterr().err
    assert not served.known


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "x", "--plant", "zero-state"], "--plant"),
        (["--url", "x", "--", "--flag"], "-- FLAG..."),
        (["--metrics", "x", "MODEL"], "--url"),
        ([], "expected MODEL, or --url URL"),
    ],
)
def test_words_that_do_not_fit_together(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["verify", *words])
    assert said in capsys.readouterr().err


def test_no_server_and_no_place_for_a_report(served, capsys, tmp_path):
    assert cli.main(["verify", "--url", "ftp://127.0.0.1"]) == 2
    assert "begins with http://" in capsys.readouterr().err
    assert served.run("--metrics", str(tmp_path / "no" / "verify.prom")) == (2, None)
    assert "--metrics: expected a directory" in capsys.readouterr().err
