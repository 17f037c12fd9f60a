"""`hybrid-pages doctor`: each rule finds what it is for, and a clean engine has no finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from endpoint import GOOD
from hybrid_pages import cli
from hybrid_pages.adapter import memory
from hybrid_pages.arguments import WrongArgument
from hybrid_pages.checks.rules import findings
from hybrid_pages.checks.situation import Situation
from hybrid_pages.doctor.serve_arguments import read_command
from model_configs import QWEN36_27B, config_of

CLEAN = Situation(
    block_tokens=784,
    entry_bytes=200 << 20,
    has_states=True,
    host_bytes=64 << 30,
    max_batched_tokens=8192,
    max_model_len=32768,
)


def changed(**values: Any) -> list[str]:
    return [finding.name for finding in findings(Situation(**vars(CLEAN) | values))]


def test_nothing_is_wrong_with_defaults():
    assert changed() == []
    assert findings(Situation()) == []


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"host_bytes": 300 << 20}, ["small-budget"]),
        ({"max_batched_tokens": 783}, ["step-below-block"]),
        ({"max_batched_tokens": 784}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 1566}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 1567}, []),
        ({"max_batched_tokens": 100, "has_states": False}, []),
        ({"max_batched_tokens": 784, "max_requests": 1}, []),
        ({"max_batched_tokens": 784, "draft_slots": 1, "max_requests": 1}, ["step-below-block"]),
        ({"max_batched_tokens": 1567, "draft_slots": 1}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 1024, "state_tokens": 512}, []),
        ({"max_scheduled_tokens": 783}, ["step-below-block"]),
        ({"max_scheduled_tokens": 1566}, ["step-below-two-blocks"]),
        ({"max_scheduled_tokens": 1567}, []),
        ({"max_batched_tokens": None, "max_scheduled_tokens": 1566}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 783, "max_scheduled_tokens": 8192}, ["step-below-block"]),
        ({"long_prefill_tokens": 783}, ["step-below-block"]),
        ({"long_prefill_tokens": 784}, []),
        ({"max_batched_tokens": None, "long_prefill_tokens": 512}, ["step-below-block"]),
        ({"long_prefill_tokens": 784, "max_batched_tokens": 1566}, ["step-below-two-blocks"]),
        ({"long_prefill_tokens": 512, "max_batched_tokens": 1566}, ["step-below-block"]),
        ({"cuts_prompts": False}, ["chunked-prefill"]),
        ({"cuts_prompts": False, "has_states": False}, []),
        ({"max_model_len": 784}, ["prompts-below-block"]),
        ({"max_model_len": 785}, []),
        ({"retention": 8192}, ["retention"]),
        ({"retention": None}, ["retention"]),
        ({"hash_algorithm": "xxhash", "has_hash_seed": False, "has_disk": True}, ["hash-seed"]),
        ({"hash_algorithm": "xxhash", "has_hash_seed": False, "has_remote": True}, ["hash-seed"]),
        ({"hash_algorithm": "xxhash", "has_hash_seed": False}, []),
        ({"hash_algorithm": "xxhash", "has_disk": True}, []),
        ({"has_hash_seed": False, "publishes_events": True}, []),
        ({"siblings": ("NixlConnector",)}, ["failure-policy"]),
        ({"siblings": ("NixlConnector",), "failure_policy": "recompute"}, []),
        ({"kv_role": "kv_consumer"}, ["role"]),
        ({"kv_role": "kv_producer"}, ["role"]),
        ({"kv_role": "kv_consumer", "has_remote": True}, []),
        ({"kv_role": "kv_producer", "has_remote": True}, []),
        ({"changes_weights": "x"}, ["resets"]),
        ({"changes_weights": "x", "follows_resets": True}, []),
        ({"checkpoint_mode": "none"}, ["checkpoint-mode"]),
        ({"drafts": 1, "exports_states": True}, ["one-draft"]),
        ({"drafts": 2, "exports_states": True}, []),
    ],
)
def test_each_rule_finds_what_it_is_for(values, names):
    assert changed(**values) == names


@pytest.mark.parametrize("mode", ["adaptive", "align"])
@pytest.mark.parametrize("retention", [None, 8192])
def test_what_keeps_states_of_answers_is_not_advised_against_without_what_else_does(
    mode, retention
):
    (finding,) = findings(Situation(**vars(CLEAN) | kept_by(mode, retention)))
    assert (finding.name, finding.effect) == ("retention", "memory")
    assert finding.fix.startswith('"checkpoint_mode": "all" with ')


def test_beside_all_states_vllms_own_copies_are_only_a_cost():
    (finding,) = findings(Situation(**vars(CLEAN) | kept_by("all", None)))
    assert finding.fix == "leave --prefix-cache-retention-interval at 0, its default"


def kept_by(mode: str, retention: int | None) -> dict[str, Any]:
    return {"checkpoint_mode": mode, "retention": retention}


def test_the_worst_comes_first():
    assert changed(changes_weights="x", retention=None, kv_role="kv_consumer") == [
        "resets",
        "role",
        "retention",
    ]


@pytest.mark.parametrize(
    ("values", "said", "fix"),
    [
        (
            {"max_batched_tokens": 512},
            "takes 2 steps, the last one with 272 tokens. No hit is lost, and nothing waits",
            "--max-num-batched-tokens 1567 or more",
        ),
        (
            {"max_batched_tokens": 98},
            "takes 8 steps, the last one with 98 tokens",
            "--max-num-batched-tokens 1567 or more",
        ),
        (
            {"long_prefill_tokens": 512, "max_batched_tokens": 1024},
            "beside other requests a prompt gets 512 tokens of a step",
            "--max-num-batched-tokens 1567 or more, and --long-prefill-token-threshold 784 or more",
        ),
        (
            {"max_scheduled_tokens": 1000},
            "beside more than 216 of other requests",
            "--max-num-scheduled-tokens 1567 or more",
        ),
        (
            {"max_batched_tokens": 512, "max_scheduled_tokens": 8192},
            "a longer prompt waits for ever",
            "--max-num-batched-tokens 1567 or more",
        ),
        (
            {"max_batched_tokens": 1000, "draft_slots": 1},
            "room for 999 tokens",
            "--max-num-batched-tokens 1568 or more",
        ),
    ],
)
def test_a_short_step_is_told_by_what_it_costs(values, said, fix):
    (finding,) = findings(Situation(**vars(CLEAN) | values))
    assert said in finding.found
    assert (finding.effect, finding.fix) == ("time", fix)


# ---- command lines


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN36_27B))
    return str(tmp_path / "model")


@pytest.fixture(autouse=True)
def a_large_machine(monkeypatch):
    free = memory.Free(1 << 40, "plenty of memory")
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    for name in ("VLLM_SERVER_DEV_MODE", "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)


def ours(**extra: Any) -> str:
    return json.dumps(
        {
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 64} | extra,
        }
    )


def examined(capsys, *words: str) -> dict[str, Any]:
    status = cli.main(["doctor", "--json", "--", *words])
    found = json.loads(capsys.readouterr().out)
    assert status == int(bool(found["findings"]))
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [finding["name"] for finding in found["findings"]]


def test_a_good_command_line_has_no_findings(capsys, model):
    words = ["vllm", "serve", model, "--kv-transfer-config", ours(), "-tp", "2"]
    assert examined(capsys, *words) == {"findings": [], "skipped": []}
    assert cli.main(["doctor", "--", *words]) == 0
    assert capsys.readouterr().out == "nothing to do\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--no-enable-prefix-caching"], "prefix-caching"),
        (["--enable_prefix_caching=false"], "prefix-caching"),
        (["--disable-prefix-caching"], "prefix-caching"),
        (["--enable-prefix-caching", "--disable-prefix-caching"], "prefix-caching"),
        (["--mamba-cache-mode", "none"], "mamba-cache-mode"),
        (["--max-num-batched-tokens=512"], "step-below-block"),
        (["--max-num-batched-tokens", "1k"], "step-below-two-blocks"),
        (["--max-num-scheduled-tokens", "512"], "step-below-block"),
        (["--max-num-scheduled-tokens", "784"], "step-below-two-blocks"),
        (["--long-prefill-token-threshold", "512"], "step-below-block"),
        (["--no-enable-chunked-prefill"], "chunked-prefill"),
        (["--max-model-len", "512"], "prompts-below-block"),
        (["--prefix-cache-retention-interval", "None"], "retention"),
        (["-pp", "2"], "pipeline-parallel-size"),
        (["--disable-hybrid-kv-cache-manager"], "disable-hybrid-kv-cache-manager"),
        (["--weight-transfer-config", "{}"], "resets"),
        (["--weight-transfer-config.backend", "nccl"], "resets"),
        (["-n", "2"], "nnodes"),
        (["--ubatch-size", "2"], "ubatch-size"),
        (["--ec-transfer-config", "{}"], "ec-transfer-config"),
        (["-sc", '{"method": "suffix", "num_speculative_tokens": 2}'], "drafts"),
        (["--spec-method", "dflash", "--spec-tokens", "2"], "drafts"),
        (["-sc", '{"method": "qwen3_next_mtp", "num_speculative_tokens": 8}'], "drafts"),
        (["--kv-offloading-size", "4"], "kv-offloading"),
        (["--kv-transfer-config.kv_connector_extra_config.host_gb", "8"], "no-connector"),
    ],
)
def test_options_that_cost_are_found(capsys, model, words, name):
    found = examined(capsys, "vllm", "serve", model, "--kv-transfer-config", ours(), *words)
    assert names(found) == [name]
    assert all(finding["fix"] for finding in found["findings"])


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"host_gb": 0.2}, "small-budget"),
        ({"host_gib": 1}, "settings"),
        ({"host_gb": 2048}, "memory"),
        ({"checkpoint_mode": "none"}, "checkpoint-mode"),
        ({"disk_path": "/no/such/place", "disk_gb": 1}, "disk"),
        ({"huge_pages": "2M", "host_gb": 1 << 18}, "huge-pages"),
    ],
)
def test_settings_that_cost_are_found(capsys, model, extra, name):
    words = ["vllm", "serve", model, "--kv-transfer-config", ours(**extra)]
    assert names(examined(capsys, *words)) == [name]


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-scheduled-tokens", "1567"],
        ["--max-num-batched-tokens", "784", "--max-num-seqs", "1"],
        ["--long-prefill-token-threshold", "784"],
        ["--long-prefill-token-threshold", "0"],
        ["--max-model-len", "auto"],
        ["--max-model-len", "-1"],
        ["--disable-prefix-caching", "--enable-prefix-caching"],
        ["--disable-hybrid-kv-cache-manager", "--enable-hybrid-kv-cache-manager"],
        ["--prefix-cache-retention-interval", "0"],
        ["--kv-offloading-size", "None"],
        ["--block-size", "None"],
        ["-sc", '{"method": "qwen3_next_mtp", "num_speculative_tokens": 3}'],
        ["--ubatch-size", "0"],
    ],
)
def test_options_that_cost_nothing_are_not_found(capsys, model, words):
    found = examined(capsys, "vllm", "serve", model, "--kv-transfer-config", ours(), *words)
    assert found == {"findings": [], "skipped": []}


@pytest.mark.parametrize(
    ("values", "name", "said"),
    [
        ({"kv_role": None}, "kv-role", "found none"),
        ({"kv_role": "both"}, "kv-role", "found 'both'"),
        ({"kv_connector_extra_config": [1]}, "settings", "expected a JSON object, found [1]"),
        ({"kv_connector": "hybridpagesconnector"}, "no-connector", "'hybridpagesconnector'"),
    ],
)
def test_a_transfer_configuration_that_vllm_refuses_is_found(capsys, model, values, name, said):
    config = json.dumps(json.loads(ours()) | values)
    found = examined(capsys, "vllm", "serve", model, "--kv-transfer-config", config)
    assert names(found) == [name]
    assert said in found["findings"][0]["found"]


@pytest.mark.parametrize(
    "words",
    [
        ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'],
        ["-sc", '{"num_speculative_tokens": 1}'],
        ["--speculative-config.num_speculative_tokens", "1"],
        ["--spec-tokens", "1"],
    ],
)
def test_one_draft_is_found_where_kernels_export_states(capsys, tmp_path, words):
    (tmp_path / "config.json").write_text(json.dumps(config_of("NemotronHForCausalLM")))
    command = ["vllm", "serve", str(tmp_path), "--kv-transfer-config", ours()]
    assert names(examined(capsys, *command, *words)) == ["one-draft"]
    assert names(examined(capsys, *command)) == []


def test_drafts_make_blocks_longer(capsys, model):
    words = ["vllm", "serve", model, "--kv-transfer-config", ours(), "--spec-tokens", "2"]
    (found,) = examined(capsys, *words, "--max-num-batched-tokens", "1567")["findings"]
    assert found["name"] == "step-below-two-blocks"
    assert found["fix"].startswith("--max-num-batched-tokens 1599 ")


@pytest.mark.parametrize(
    ("words", "slot"),
    [
        (["-sc", '{"method": "draft_model", "model": "x", "num_speculative_tokens": 2}'], 1),
        (["-sc", '{"model": "a/small", "num_speculative_tokens": 2}'], 1),
        (["--spec-model", "a/small", "--spec-tokens", "2"], 1),
        (["--spec-model", "a/EAGLE3-small", "--spec-tokens", "2"], 0),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 2}'], 0),
    ],
)
def test_a_draft_model_takes_a_place_of_a_step(capsys, model, words, slot):
    command = ["vllm", "serve", model, "--kv-transfer-config", ours(), *words]
    least = "--max-num-batched-tokens"
    (found,) = examined(capsys, *command, least, str(1598 + slot))["findings"]
    assert found["fix"] == f"{least} {1599 + slot} or more"
    assert names(examined(capsys, *command, least, str(1599 + slot))) == []


def test_the_cores_of_an_engine_share_the_machine(capsys, model):
    words = ["vllm", "serve", model, "--kv-transfer-config", ours(host_gb=600)]
    assert names(examined(capsys, *words)) == []
    assert names(examined(capsys, *words, "-dp", "2")) == ["memory"]


def test_a_directory_of_others_is_found(capsys, model, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["vllm", "serve", model, "--kv-transfer-config", ours(disk_path=str(disk), disk_gb=1)]
    assert names(examined(capsys, *words)) == []
    words += ["--prefix-caching-hash-algo", "xxhash"]
    assert names(examined(capsys, *words)) == ["hash-seed"]
    assert names(examined(capsys, "PYTHONHASHSEED=7", *words)) == []
    (disk / "somebody-elses.txt").write_text("mine")
    assert names(examined(capsys, *words[:-2])) == ["foreign-store"]


def test_a_remote_store_names_prefixes_for_others(capsys, model, tmp_path):
    extra = ours(remote_url=tmp_path.as_uri())
    words = ["vllm", "serve", model, "--kv-transfer-config", extra]
    assert names(examined(capsys, *words)) == []
    words += ["--prefix-caching-hash-algo", "xxhash"]
    assert names(examined(capsys, *words)) == ["hash-seed"]


def test_siblings_end_requests_unless_told_otherwise(capsys, model):
    children = [json.loads(ours()), {"kv_connector": "NixlConnector", "kv_role": "kv_both"}]
    outer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": children},
    }
    words = ["vllm", "serve", model, "--kv-transfer-config"]
    assert names(examined(capsys, *words, json.dumps(outer))) == ["failure-policy"]
    outer["kv_load_failure_policy"] = "recompute"
    assert names(examined(capsys, *words, json.dumps(outer))) == []


def test_without_the_connector_it_says_how_to_add_it(capsys, model):
    (finding,) = examined(capsys, "vllm", "serve", model)["findings"]
    assert finding["name"] == "no-connector"
    flag = finding["fix"].partition("--kv-transfer-config '")[2].rstrip("'")
    assert json.loads(flag)["kv_connector"] == "HybridPagesConnector"


def test_what_cannot_be_looked_at_is_said(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NewForCausalLM"]}))
    words = ["vllm", "serve", str(tmp_path), "--kv-transfer-config", ours()]
    found = examined(capsys, *words)
    assert names(found) == []
    assert [reason.partition(":")[0] for reason in found["skipped"]] == ["the size of a block"]


def test_a_default_step_that_may_be_too_short_is_said(capsys, tmp_path):
    config = config_of("FalconH1ForCausalLM") | {"num_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["vllm", "serve", str(tmp_path), "--kv-transfer-config", ours()]
    found = examined(capsys, *words)
    assert names(found) == []
    (reason,) = found["skipped"]
    least = reason.partition("--max-num-batched-tokens ")[2].partition(" ")[0]
    assert int(least) > 2048
    words += ["--max-num-batched-tokens"]
    assert examined(capsys, *words, least) == {"findings": [], "skipped": []}
    assert names(examined(capsys, *words, "2048")) == ["step-below-two-blocks"]


def test_options_in_a_file_count_before_those_of_the_command_line(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: a/b\n"
        "kv-transfer-config:\n"
        "  kv_connector: HybridPagesConnector\n"
        "  kv_connector_extra_config: {host_gb: 8}\n"
        "enable-prefix-caching: false\n"
        "enforce-eager: true\n"
        "max-num-batched-tokens: 512\n"
        "max-model-len: 1k\n"
    )
    for words in (["--config", str(file)], [f"--config={file}"]):
        command = read_command(["vllm", "serve", *words, "--max-model-len", "2k"])
        assert command.model == "a/b"
        assert command.ours()["kv_connector_extra_config"] == {"host_gb": 8}
        assert command.is_on("enable-prefix-caching") is False and command.is_on("enforce-eager")
        assert command.number("max-num-batched-tokens") == 512
        assert command.number("max-model-len") == 2000
    assert read_command(["vllm", "serve", "c/d", "--config", str(file)]).model == "c/d"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("serve.json", "{}", "found '.*serve.json'"),
        ("missing.yaml", None, "No such file"),
        ("serve.yaml", "a: [", "while parsing"),
        ("serve.yaml", "- a", "found list"),
    ],
)
def test_a_file_of_options_that_is_none_is_an_error(tmp_path, name, text, reason):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(WrongArgument, match=f"--config: expected a YAML file of options.*{reason}"):
        read_command(["vllm", "serve", "m", "--config", str(tmp_path / name)])


def test_command_lines_are_read_as_vllm_reads_them():
    dotted = read_command(
        [
            "vllm",
            "serve",
            "--model=a/b",
            "--kv-transfer-config.kv_connector",
            "HybridPagesConnector",
            "--kv-transfer-config.kv_connector_extra_config.host_gb=8",
            "--max_num_batched_tokens",
            "4K",
            "--enforce-eager",
        ]
    )
    assert dotted.model == "a/b"
    assert dotted.ours()["kv_connector_extra_config"] == {"host_gb": 8}
    assert dotted.number("max-num-batched-tokens") == 4096
    assert dotted.is_on("enforce-eager") and dotted.is_on("enable-prefix-caching") is None
    merged = read_command(
        [
            "serve",
            "m",
            "--kv-transfer-config.a",
            "1",
            "--kv-transfer-config.a.b",
            "x",
            "-dpl",
            "2",
            "--max-num-batched-tokens",
            "1.5k",
        ]
    )
    assert merged.transfer == {"a": {"b": "x"}}
    assert merged.number("data-parallel-size-local") == 2
    assert merged.number("max-num-batched-tokens") == 1500
    module = read_command(["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"])
    assert module.model == "m"


@pytest.mark.parametrize(
    "words",
    [
        ["vllm", "serve", "--trust-remote-code", "m"],
        ["vllm", "serve", "-O3", "m", "-ep"],
        ["vllm", "serve", "--enable-prefix-caching", "m", "--block-size", "16"],
        ["uv", "run", "vllm", "serve", "m"],
        ["docker", "run", "-e", "A=1", "--ipc=host", "vllm/vllm-openai", "serve", "m"],
        ["vllm", "serve", "--model", "m", "--served-model-name", "a", "b"],
        ["m", "--max-model-len", "1k"],
    ],
)
def test_the_model_is_found_among_options(words):
    command = read_command(words)
    assert command.model == "m"
    assert command.environment == ({"A": "1"} if words[0] == "docker" else {})


@pytest.mark.parametrize(
    "words",
    [
        ["A=1 vllm serve m --max-model-len 1k"],
        ["bash", "-lc", "exec env A=1 vllm serve m \\\n  --max-model-len 1k"],
        [
            "docker",
            "run",
            "-e",
            "A=1",
            "image",
            "sh",
            "-c",
            "python -m x --model m --max-model-len 1k",
        ],
    ],
)
def test_a_command_may_be_quoted_as_a_whole(words):
    command = read_command(words)
    assert (command.model, command.number("max-model-len")) == ("m", 1000)
    assert command.environment == {"A": "1"}


def test_a_quoted_text_of_an_option_is_no_command():
    command = read_command(["vllm", "serve", "m", "--chat-template", "we serve -m you"])
    assert (command.model, command.text("chat-template")) == ("m", "we serve -m you")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["vllm", "serve"], "expected a command such as `vllm serve MODEL"),
        (["vllm", "serve", "m", "--kv-transfer-config", "{"], "expected JSON"),
        (["vllm", "serve", "m", "--kv-transfer-config", "[1]"], "expected a JSON object"),
        (["vllm", "serve", "m", "--max-model-len", "long"], "--max-model-len: expected a number"),
        (["vllm", "serve", "m", "--max-model-len", "1e400"], "expected a number, found '1e400'"),
        (["vllm", "serve", "m", "--max-num-batched-tokens", "1.5K"], "expected a number, found"),
        (["vllm", "serve", "m", "-tp", "0"], "expected a number from 1 on, found '0'"),
        (["vllm", "serve", "m", "--prefix-cache-retention-interval", "x"], "expected a number"),
        (["vllm", "serve", "m", "--kv-transfer-config"], "expected a JSON object, found nothing"),
        (["vllm", "chat"], "found 'vllm' without `serve`"),
        (["docker", "run", "vllm/vllm-openai", "--model", "m"], "found 'docker' without `serve`"),
    ],
)
def test_a_command_line_that_is_none_is_an_error(capsys, words, reason):
    assert cli.main(["doctor", "--", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err


@pytest.mark.parametrize("words", [[], ["--url", "x", "--", "vllm", "serve", "m"]])
def test_there_must_be_one_thing_to_look_at(capsys, words):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["doctor", *words])
    assert exit_.value.code == 2


def test_other_models_are_planned_too(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of("LlamaForCausalLM")))
    words = ["vllm", "serve", str(tmp_path), "--kv-transfer-config", ours()]
    assert names(examined(capsys, *words, "--max-num-batched-tokens", "64")) == []


# ---- engines that run


def of_engine(capsys, url: str) -> list[str]:
    status = cli.main(["doctor", "--json", "--url", url])
    found = names(json.loads(capsys.readouterr().out))
    assert status == int(bool(found))
    return found


def test_prompts_are_compared_with_the_block_of_all_groups(capsys, server):
    """vLLM tells the smallest block of its groups."""
    text = GOOD.replace('block_size="784"', 'block_size="16"')
    assert of_engine(capsys, server(text)) == []
    text += 'vllm:hybrid_pages_block_tokens{engine="0"} 1500\n'
    text = text.replace('le="1000"} 5', 'le="1000"} 9')
    assert of_engine(capsys, server(text)) == ["short-prompts"]


def test_a_good_engine_has_no_findings(capsys, server):
    assert of_engine(capsys, server(GOOD)) == []
    assert of_engine(capsys, server(GOOD) + "/metrics") == []
    assert of_engine(capsys, server(GOOD).removeprefix("http://")) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('failures_total{reason="geometry"} 1', "cache-off"),
        ('failures_total{reason="load"} 2', "failures"),
        ('refused_hints_total{engine="0"} 2', "hints"),
        ('missing_state_tokens_total{engine="1"} 50000', "missing-states"),
        ('missing_answer_tokens_total{engine="1"} 50000', "answers"),
        ('skipped_entries_total{reason="no_room"} 50', "no-room"),
        ('disk_out{engine="1"} 1', "disk-out"),
        ('disk_used_bytes{engine="0",identity="other"} 600', "foreign-store"),
        ('disk_failures_total{reason="read"} 1', "disk-failures"),
        ('remote_out{engine="0"} 1', "remote-out"),
        ('remote_sharing{engine="0"} 0', "remote-not-shared"),
        ('remote_failures_total{reason="deadline"} 1', "remote-failures"),
        ('remote_unanswered_total{engine="0"} 2', "remote-unanswered"),
        ('remote_not_worth_total{engine="0"} 2', "remote-slow"),
        ('remote_entries_total{event="declined"} 1', "remote-declined"),
        ('free_bytes{engine="1"} 1000', "unpinned"),
    ],
)
def test_what_an_engine_reports_is_found(capsys, server, line, name):
    assert of_engine(capsys, server(f"{GOOD}vllm:hybrid_pages_{line}\n")) == [name]


def test_answers_that_are_computed_again_are_told_with_what_keeps_them(capsys, server):
    tokens = 'vllm:hybrid_pages_missing_answer_tokens_total{engine="0"}'
    assert of_engine(capsys, server(f"{GOOD}{tokens} 1000\n")) == [], "few"
    pages = "".join(
        f"vllm:hybrid_pages_{line}\n"
        for line in (
            'missing_state_tokens_total{engine="1"} 50000',
            'missing_states_total{engine="1",reason="answer"} 9',
            'missing_states_total{engine="1",reason="evicted"} 3',
        )
    )
    assert cli.main(["doctor", "--json", "--url", server(f"{GOOD}{tokens} 50000\n{pages}")]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["name"] for finding in found] == ["missing-states", "answers"]
    assert all('"checkpoint_mode": "all"' in finding["fix"] for finding in found)


def test_a_remote_store_that_works_has_no_finding(capsys, server):
    lines = (
        'remote_out{engine="0"} 0',
        'remote_sharing{engine="0"} 1',
        'remote_failures_total{engine="0",reason="deadline"} 0',
        'remote_unanswered_total{engine="0"} 1',
        'remote_not_worth_total{engine="0"} 1',
        'remote_entries_total{engine="0",event="written"} 100',
        'remote_entries_total{engine="0",event="unproven"} 900',
        'remote_entries_total{engine="0",event="declined"} 10',
    )
    text = GOOD + "".join(f"vllm:hybrid_pages_{line}\n" for line in lines)
    assert of_engine(capsys, server(text)) == []
    # One core's reset is enough.
    other = 'vllm:hybrid_pages_remote_sharing{engine="1"} 0\n'
    assert of_engine(capsys, server(text + other)) == ["remote-not-shared"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("full", "more memory"),
        ("gone", "lifecycle rule"),
        ("list", "the log names"),
    ],
)
def test_the_fix_of_a_remote_failure_is_that_of_the_commonest_reason(capsys, server, reason, words):
    text = "".join(
        f'vllm:hybrid_pages_remote_failures_total{{engine="0",reason="{name}"}} {count}\n'
        for name, count in (("deadline", 1), (reason, 3))
    )
    assert cli.main(["doctor", "--json", "--url", server(GOOD + text)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert f"1 deadline, 3 {reason}" in finding["found"]
    assert words in finding["fix"]


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('le="500"} 1', 'le="500"} 9', "short-prompts"),
        ('disk_lasting{engine="0"} 1', 'disk_lasting{engine="0"} 0', "disk-not-lasting"),
        ('interval="0"', 'interval="4096"', "retention"),
        ('source="host"} 5.0e4', 'source="host"} 0', "no-hits"),
        ('caching="True"', 'caching="False"', "prefix-caching"),
    ],
)
def test_what_an_engine_says_of_itself_is_found(capsys, server, old, new, name):
    assert old in GOOD
    assert of_engine(capsys, server(GOOD.replace(old, new))) == [name]


def test_a_question_for_missing_hits_is_answered_with_the_size_of_a_block(capsys, server):
    url = server(GOOD.replace('source="host"} 5.0e4', 'source="host"} 0'))
    assert cli.main(["doctor", "--json", "--url", url]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert "less than a block of 784 tokens" in finding["fix"]


def test_an_engine_without_the_connector_is_found(capsys, server):
    text = "".join(line for line in GOOD.splitlines(True) if "hybrid_pages" not in line)
    assert of_engine(capsys, server(text)) == ["no-connector"]


@pytest.mark.parametrize(
    ("old", "new"), [('le="500"', 'le="x"'), ("784", "9" * 5000), ("784", "\N{SUPERSCRIPT TWO}")]
)
def test_labels_that_are_no_numbers_are_left_out(capsys, server, old, new):
    assert cli.main(["doctor", "--url", server(GOOD.replace(old, new))]) == 0
    assert capsys.readouterr().out == "nothing to do\n"


def test_an_engine_of_another_version_is_found(capsys, server):
    assert of_engine(capsys, server(GOOD, "0.34.1")) == ["version"]


def test_an_engine_that_does_not_answer_is_an_error(capsys, server):
    for url in ("http://127.0.0.1:1", server("")):
        assert cli.main(["doctor", "--url", url]) == 2
        assert "hybrid-pages doctor: " in capsys.readouterr().err
