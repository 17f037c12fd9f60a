"""`hybrid-pages verify --url` on a server of made-up answers: what it compares."""

from __future__ import annotations

import pytest

from checked_server import N
from hybrid_pages import cli
from hybrid_pages.scrape import parse
from hybrid_pages.vllm.scheduler.requests.check import SALT


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


def test_noise_hides_a_difference_of_its_size_alone(served):
    served.noise = 0.2
    assert served.run()[0] == 0
    served.spoiled, served.noise = {"host"}, 0.02
    assert served.run()[0] == 1


def test_cached_answers_that_are_far_from_cold_ones_are_never_good(served):
    """vLLM's own hits and restored answers are equal, and all of them are wrong."""
    served.cached_garbage = 10.0
    status, found = served.run()
    assert status == 1 and not found["good"]
    assert found["noise"]["cold_to_local_hit"] == pytest.approx(10)
    assert "expected log-probabilities that differ by at most 1, found 10" in found["problems"][0]
    rows = [row for each in found["prompts"] for row in each["rest_of_answer"].values()]
    assert {(row["verdict"], row["limit"]) for row in rows} == {("DIFFERS", 1.0)}


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
    assert "host: checksum" in found["failed_loads"]


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
    assert served.run()[0] == 2
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
    assert served.run(*words)[0] == 2
    assert said in capsys.readouterr().err


def test_a_model_that_takes_no_block_is_status_2(served):
    served.most = N
    status, found = served.run("--tokens", "4")
    assert status == 2 and f"--max-model-len allows {N}" in found["problems"][0]


@pytest.mark.parametrize("lacks", ["parent", "tokenizer"])
def test_an_adapter_takes_what_its_model_takes(served, lacks):
    """Its card does not tell. 17 tokens leave no room for a prompt."""
    served.most = 17
    if lacks == "parent":
        served.parent = "elsewhere"
    else:
        served.tokenizes = False
    status, found = served.run("lora", "--tokens", "17")
    assert status == 2 and "expected less than --max-model-len 17" in found["error"]


def test_another_name_and_a_key(served, monkeypatch, capsys):
    served.key = "secret"
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    status, found = served.run("lora")
    assert (status, found["model"]) == (0, "lora")
    assert {body["model"] for body in served.bodies} == {"lora"}
    assert served.run("other")[0] == 2
    assert "expected other, found m, lora" in capsys.readouterr().err


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
