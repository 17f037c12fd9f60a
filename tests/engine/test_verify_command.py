"""`hybrid-pages verify` on real engines in processes of their own: right restores pass from every
tier, planted faults and prompts that restore nothing do not."""

import json
import os
from pathlib import Path

import pytest

from hybrid_pages import cli
from hybrid_pages.demo.chat import ensure_chat

pytestmark = pytest.mark.long
CACHE = Path(__file__).parents[2] / ".cache"
BLOCK = 32
# As users run it: no flag that makes vLLM schedule synchronously or in one process.
FLAGS = [
    *("--enforce-eager", "--block-size", str(BLOCK), "--max-model-len", "2048"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "512"),
    *("--kv-cache-memory-bytes", str(64 << 20)),
]
IDS = ["--skip-tokenizer-init", *FLAGS]


@pytest.fixture(autouse=True)
def environment(monkeypatch, start):
    """No other engine is left running, and threads are not bound to cores."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # Processes that are forked need not import everything again.
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")


@pytest.fixture
def verify(capfd, tmp_path):
    """Runs the command; gives its status, its report and what it printed on standard error."""

    def run(model, options, flags, **settings):
        transfer = {
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 0.1, **settings},
        }
        words = ["verify", str(model), "--json", "-", *map(str, options), "--", *flags]
        status = cli.main([*words, "--kv-transfer-config", json.dumps(transfer)])
        printed = capfd.readouterr()
        return status, json.loads(printed.out) if printed.out else None, printed.err

    return run


def questions(folder: Path) -> Path:
    path = folder / "questions.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": f"What is {n} + {n}?", "answer": f"Twice {n}.\n#### {2 * n}"})
            + "\n"
            for n in range(6)
        )
    )
    return path


def test_every_tier_gives_what_the_engine_computes_itself(verify, tmp_path):
    disk, remote = tmp_path / "disk", tmp_path / "remote"
    options = ["--questions", questions(tmp_path), "--answer-tokens", 8, "--markdown"]
    status, found, said = verify(
        ensure_chat(CACHE),
        [*options, tmp_path / "report.md"],
        FLAGS,
        disk_path=str(disk),
        disk_gb=0.1,
        remote_url=remote.as_uri(),
    )
    assert (status, found["problems"]) == (0, []), said
    n = found["block_tokens"]
    assert found["good"]
    assert found["tiers"] == ["host", "disk", "remote"]
    assert found["noise"]["cold"] == found["noise"]["local_hit"] == 0
    long = [prompt for prompt in found["prompts"] if prompt["tokens"] > n]
    assert len(long) >= 6
    for prompt in long:
        whole = (prompt["tokens"] - 1) // n * n
        assert prompt["local_hit_tokens"] == whole
        for tier in prompt["tiers"].values():
            assert tier["restored_tokens"] == whole
            assert (tier["verdict"], tier["compared_with"]) == ("equal", "local hit")
    halves = [prompt for prompt in found["prompts"] if prompt["rest_of_answer"]]
    assert len(halves) >= 4
    for prompt in halves:
        for tier in prompt["rest_of_answer"].values():
            assert tier["restored_tokens"] == tier["prompt_tokens"] - 1
            assert (tier["verdict"], tier["compared_with"]) == ("equal", "cold")
    scores = found["scores"]
    assert scores["questions"] == 2
    assert set(scores["right"]) >= {"cold", "local hit", "host", "disk", "remote"}
    assert len(set(scores["right"].values())) == 1
    # Nothing is left, and the places that the user named were never touched.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["questions.jsonl", "report.md"]
    assert "Verified" in (tmp_path / "report.md").read_text()


# Without --skip-tokenizer-init, transformers makes an empty tokenizer of a folder that has none.
@pytest.mark.parametrize(
    ("plant", "flags"),
    [("zero-state", IDS), ("swap-pages", FLAGS)],
)
def test_a_planted_fault_shows(verify, model, plant, flags):
    status, found, said = verify(model("qwen3.5"), ["--plant", plant], flags)
    assert status == 1, said
    rows = [prompt["tiers"]["host"] for prompt in found["prompts"]]
    rests = [prompt["rest_of_answer"]["host"] for prompt in found["prompts"]]
    for each in (rows, rests):
        assert all(row["restored_tokens"] for row in each)
        assert [row["verdict"] for row in each].count("DIFFERS") >= 2, each
    assert all(row["first_difference"] for row in rows if row["verdict"] == "DIFFERS")
    assert "answers differ from what the engine computes itself" in found["problems"][0]


def test_prompts_that_restore_nothing_are_a_bad_verdict(verify, model, tmp_path):
    prompts = tmp_path / "short.jsonl"
    prompts.write_text(json.dumps({"prompt_token_ids": list(range(20, 20 + BLOCK))}) + "\n")
    status, found, said = verify(model("qwen3.5"), ["--prompts", prompts, "--tokens", 1], IDS)
    assert status == 1, said
    assert found["prompts"][0]["tiers"]["host"]["verdict"] == "nothing restored"
    assert "longer than a block of" in found["problems"][0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--no-such-flag"], "flags of vLLM: "),
        (["--no-enable-prefix-caching"], "prefix caching"),
    ],
)
def test_an_engine_that_does_not_start_is_no_verdict(verify, model, flags, said):
    status, found, printed = verify(model("qwen3.5"), [], [*IDS, *flags])
    assert (status, found) == (2, None)
    assert said in printed.replace("_", " ")
    assert "HYBRID_PAGES_VERIFY_PLANT" not in os.environ
