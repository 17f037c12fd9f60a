"""`hybrid-pages doctor` on command lines: a clean one has no finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybrid_pages import cli
from hybrid_pages.adapter import memory
from hybrid_pages.arguments import WrongArgument
from hybrid_pages.doctor.serve_arguments import read_command
from model_configs import QWEN36_27B, config_of


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
        (
            ["--max-model-len", "512", "-sc", '{"method": "ngram", "num_speculative_tokens": 2}'],
            "prompts-below-block",
        ),
        (["--prefix-cache-retention-interval", "None"], "retention"),
        (
            ["-pp", "2", "-sc", '{"method": "ngram", "num_speculative_tokens": 2}'],
            "drafts",
        ),
        (["--disable-hybrid-kv-cache-manager"], "disable-hybrid-kv-cache-manager"),
        (["--weight-transfer-config", "{}"], "resets"),
        (["--weight-transfer-config.backend", "nccl"], "resets"),
        (["--ubatch-size", "2"], "ubatch-size"),
        (["--ec-transfer-config", "{}"], "ec-transfer-config"),
        (["-sc", '{"method": "suffix", "num_speculative_tokens": 2}'], "drafts"),
        (["--spec-method", "dflash", "--spec-tokens", "2"], "drafts"),
        (["-sc", '{"method": "qwen3_next_mtp", "num_speculative_tokens": 8}'], "drafts"),
        (["--kv-offloading-size", "4"], "kv-offloading"),
        (["--enable-return-routed-experts"], "routed-experts"),
        (["-tp", "3"], "ranks"),
        (["-tp", "5"], "ranks"),
        (["--kv-transfer-config.kv_connector_extra_config.host_gb", "8"], "no-connector"),
    ],
)
def test_options_that_cost_are_found(capsys, model, words, name):
    found = examined(capsys, "vllm", "serve", model, "--kv-transfer-config", ours(), *words)
    assert names(found) == [name]
    assert all(finding["fix"] for finding in found["findings"])


@pytest.mark.parametrize("method", [None, "ngram"])
def test_a_divided_context_is_examined(capsys, model, method):
    words = ["--kv-transfer-config", ours(), "-tp", "2", "--decode-context-parallel-size", "2"]
    if method is not None:
        words += ["-sc", json.dumps({"method": method, "num_speculative_tokens": 2})]
    found = examined(capsys, "vllm", "serve", model, *words)
    expected = [] if method is None else ["decode-context-parallel-size"]
    assert [it for it in names(found) if it.startswith("decode")] == expected
    assert found["skipped"] == []


def test_blocks_of_a_divided_context_are_known(capsys, model):
    words = ["--kv-transfer-config", ours(), "-tp", "2", "--max-model-len", "1568"]
    assert names(examined(capsys, "vllm", "serve", model, *words)) == []
    # Two ranks keep 784 tokens each of a block, and requests resume at whole blocks only.
    found = examined(capsys, "vllm", "serve", model, *words, "-dcp", "2")
    assert names(found) == ["prompts-below-block"]
    assert "1568" in found["findings"][0]["found"]


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("Zamba2ForCausalLM", ["-pp", "2"]),
        ("GraniteMoeHybridForCausalLM", ["-pp", "99"]),
        ("Gemma3ForCausalLM", ["-tp", "2", "-dcp", "2"]),
    ],
)
def test_ranks_with_which_vllm_does_not_start_are_found(capsys, tmp_path, architecture, words):
    (tmp_path / "config.json").write_text(json.dumps(config_of(architecture)))
    words = ["vllm", "serve", str(tmp_path), "--kv-transfer-config", ours(), *words]
    assert "ranks" in names(examined(capsys, *words))


@pytest.mark.parametrize(("partition", "names_it"), [("", False), ("8,56", False), ("1,2", True)])
def test_stages_are_divided_as_the_environment_says(capsys, model, partition, names_it):
    variable = [f"VLLM_PP_LAYER_PARTITION={partition}"] * bool(partition)
    words = ["vllm", "serve", model, "--kv-transfer-config", ours(), "-pp", "2"]
    assert names(examined(capsys, *variable, *words)) == ["ranks"] * names_it


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"host_gb": 4}, None),
        ({"host_gb": "auto"}, "settings"),
        ({"host_gb": 4, "remote_url": "file:///tmp/shared"}, "nodes"),
    ],
)
def test_an_engine_on_two_nodes_is_examined(capsys, model, extra, name):
    words = ["--kv-transfer-config", ours(**extra), "-tp", "2", "-n", "2"]
    found = examined(capsys, "vllm", "serve", model, *words)
    assert [it for it in names(found) if it in ("settings", "nodes")] == [name] * bool(name)


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


def test_a_mode_that_keeps_no_ends_inside_blocks_counts_where_prompts_are_short(capsys, model):
    flag = ["--kv-transfer-config", ours(checkpoint_mode="align")]
    words = ["vllm", "serve", model, *flag, "--max-model-len", "512"]
    assert names(examined(capsys, *words)) == ["prompts-below-block"]
    assert names(examined(capsys, *words, "--prefix-match-unit", "16")) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-scheduled-tokens", "1567"],
        ["--max-num-batched-tokens", "784", "--max-num-seqs", "1"],
        ["--long-prefill-token-threshold", "784"],
        ["--long-prefill-token-threshold", "0"],
        ["--max-model-len", "512"],
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


def test_a_quota_that_the_file_system_cannot_hold_may_be_lowered(capsys, model, tmp_path):
    words = ["vllm", "serve", model, "--kv-transfer-config"]
    words.append(ours(disk_path=str(tmp_path / "disk"), disk_gb=1 << 28))
    (finding,) = examined(capsys, *words)["findings"]
    assert finding["name"] == "disk"
    assert finding["fix"] == "lower disk_gb, or name another disk_path"


@pytest.mark.parametrize("setting", ["remote_url", "trace_dir"])
def test_a_directory_that_cannot_be_made_is_found_and_none_is_made(
    capsys, model, tmp_path, setting
):
    (tmp_path / "file").write_text("mine")
    for place, expected in (("file", True), ("file/below", True), ("new", False), ("", False)):
        path = tmp_path / place
        value = path.as_uri() if setting == "remote_url" else str(path)
        words = ["vllm", "serve", model, "--kv-transfer-config", ours(**{setting: value})]
        found = examined(capsys, *words)["findings"]
        assert [it["name"] for it in found] == [setting.partition("_")[0]] * expected, place
        assert all(setting in it["found"] and setting in it["fix"] for it in found)
    assert [it.name for it in sorted(tmp_path.iterdir())] == ["file", "model"]


def test_a_remote_directory_is_made_in_one_that_is_there(capsys, model, tmp_path):
    url = (tmp_path / "a" / "b").as_uri()
    words = ["vllm", "serve", model, "--kv-transfer-config", ours(remote_url=url)]
    (finding,) = examined(capsys, *words)["findings"]
    assert str(tmp_path / "a") in finding["found"] and "make it first" in finding["found"]


def test_a_key_that_cannot_be_read_is_found(capsys, model, tmp_path):
    key = tmp_path / "key"
    words = ["vllm", "serve", model, "--kv-transfer-config"]
    words.append(ours(remote_url=tmp_path.as_uri(), encrypt_key=str(key)))
    assert names(examined(capsys, *words)) == ["encrypt-key"]
    key.write_text("ab" * 32)
    for mode, expected in ((0o600, []), (0o640, ["encrypt-key"]), (0o644, ["encrypt-key"])):
        key.chmod(mode)
        assert names(examined(capsys, *words)) == expected


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
        (["TOKEN=geheim", "env", "ollama", "serve"], "expected a command such as `vllm serve"),
        (["TOKEN=geheim", "env", "ls", "-l"], "found 'ls', which does not start vLLM's server"),
        (["ls", "-m", "http.server", "--bind", "::"], "found 'ls', which"),
        (["/bin/ls"], "found '/bin/ls', which"),
    ],
)
def test_a_command_line_that_is_none_is_an_error(capsys, words, reason):
    assert cli.main(["doctor", "--", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err and "geheim" not in printed.err


@pytest.mark.parametrize("words", [[], ["--url", "x", "--", "vllm", "serve", "m"]])
def test_there_must_be_one_thing_to_look_at(capsys, words):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["doctor", *words])
    assert exit_.value.code == 2


def test_other_models_are_planned_too(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of("LlamaForCausalLM")))
    words = ["vllm", "serve", str(tmp_path), "--kv-transfer-config", ours()]
    assert names(examined(capsys, *words, "--max-num-batched-tokens", "64")) == []
