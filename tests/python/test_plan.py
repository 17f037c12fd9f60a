"""`hybrid-pages plan`: what it prints, what it refuses, and with which status."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hybrid_pages import cli
from hybrid_pages.plan.report import show
from model_configs import QWEN35_08B, QWEN36_27B, config_of

GIB = 1 << 30


@pytest.fixture
def model(tmp_path: Path) -> Any:
    def made(config: dict[str, Any]) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return made


def planned(capsys, *words: str) -> dict[str, Any]:
    assert cli.main(["plan", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("config", "n", "batched"), [(QWEN36_27B, 784, 1567), (QWEN35_08B, 544, 1087)]
)
def test_published_models(capsys, model, config, n, batched):
    found = planned(capsys, model(config))
    assert (found["block_tokens"], found["min_batched_tokens"]) == (n, batched)
    assert found["page_bytes"] == n * found["bytes_per_token"]
    assert found["checkpoint_bytes"] < 3 * found["page_bytes"]
    assert found["states"]["made"] == "at step ends"
    assert cli.main(["plan", model(config)]) == 0
    printed = capsys.readouterr().out
    assert f"N = {n:,} tokens (2N-1 = {batched:,})" in printed
    assert "at any token where an earlier prompt or answer ended" in printed


@pytest.mark.parametrize(
    ("config", "words", "reason"),
    [
        (QWEN36_27B, [], None),
        (QWEN36_27B, ["--drafts", "2"], "drafts"),
        (config_of("LlamaForCausalLM"), [], "no_states"),
    ],
)
def test_what_resumes_at_whole_blocks_only_is_told(capsys, model, config, words, reason):
    assert planned(capsys, model(config), *words)["whole_blocks_only"] == reason
    assert cli.main(["plan", model(config), *words]) == 0
    assert ("multiples of N only" in capsys.readouterr().out) == (reason is not None)


def test_the_cpu_of_the_tests_has_other_blocks(capsys, model):
    words = [model(QWEN36_27B), "--device", "cpu"]
    assert planned(capsys, *words)["block_tokens"] == 896
    assert planned(capsys, *words, "--block-size", "32")["block_tokens"] == 800
    assert planned(capsys, *words, "--block-size", "64")["block_tokens"] == 832
    # There, states are float32 where the model does not say it.
    found = planned(capsys, model(config_of("GraniteMoeHybridForCausalLM")), "--device", "cpu")
    assert found["layers"][0]["state_bytes"] == (4096 + 256) * 3 * 2 + 64 * 64 * 128 * 4
    text = QWEN36_27B["text_config"] | {"mamba_ssm_dtype": "bfloat16"}
    found = planned(capsys, model(QWEN36_27B | {"text_config": text}), "--device", "cpu")
    assert found["checkpoint_bytes"] == 48 * (61_440 + 3_145_728 // 2)


def test_budgets_hold_what_fits(capsys, model):
    found = planned(
        capsys, model(QWEN36_27B), "--host-gb", "64", "--disk-gb", "500", "--conversation", "7840"
    )
    page, checkpoint = found["page_bytes"], found["checkpoint_bytes"]
    assert found["capacity"]["host"]["dense_tokens"] == 64 * GIB // (page + checkpoint) * 784
    modes = {mode["mode"]: mode for mode in found["modes"]}
    assert modes["none"]["conversations"] == {"host": 0, "disk": 0}
    assert modes["align"]["bytes"] == 10 * page + 8 * checkpoint
    assert modes["all"]["bytes"] == 10 * (page + checkpoint)
    # All turns but the last end inside blocks, each in a page of its own.
    assert modes["adaptive, all turns"]["bytes"] == 17 * page + 8 * checkpoint
    last = modes["adaptive, last turn"]
    assert last["bytes"] == 10 * page + checkpoint
    assert last["conversations"] == {
        name: size * GIB // last["bytes"] for name, size in (("host", 64), ("disk", 500))
    }


def test_what_pinned_memory_takes_of_each_gpu_is_told(capsys, model):
    words = [model(QWEN36_27B), "--tp", "2", "--host-gb", "255"]

    def huge(found: dict[str, Any]) -> bool:
        return any("huge_pages" in row["setting"] for row in found["settings"])

    found = planned(capsys, *words)
    assert (found["page_table_bytes"], huge(found)) == (255 << 20, False)
    (row,) = [row for row in found["settings"] if "host_gb" in row["setting"]]
    assert "of each GPU 255 MiB for page tables and 128 MiB to stage" in row["cost"]
    more = planned(capsys, *words[:-1], "256")
    assert (more["page_table_bytes"], huge(more)) == (256 << 20, True)
    cpu = planned(capsys, *words[:-1], "256", "--device", "cpu")
    assert (cpu["page_table_bytes"], huge(cpu)) == (0, False)
    assert not any("GPU" in row["cost"] for row in cpu["settings"])


def test_stages_and_nodes_have_equal_parts(capsys, model):
    one = planned(capsys, model(QWEN36_27B))
    words = [model(QWEN36_27B), "--tp", "2", "--nodes", "2", "--host-gb", "64"]
    found = planned(capsys, *words, "--pipeline-parallel-size", "2")
    # Each half of the 64 layers has 24 states and 8 layers of attention.
    assert found["stages"] == [32, 32]
    assert found["zero_bytes"] == {"page": 0, "checkpoint": 0}
    for key in ("block_tokens", "page_bytes", "checkpoint_bytes", "memory"):
        assert found[key] == one[key]
    for part, parts in (("per_rank", 4), ("per_node", 2)):
        assert found[part] == {
            "page_bytes": one["page_bytes"] // parts,
            "checkpoint_bytes": one["checkpoint_bytes"] // parts,
            "host_gib": 64 / parts,
        }
    assert cli.main(["plan", *words, "--pp", "2"]) == 0
    printed = capsys.readouterr().out
    assert "12.25 MiB of a page, 36.7 MiB of a checkpoint, 16 GiB of host memory: 1 of 4" in printed
    assert "32 GiB of host memory: 1 of 2" in printed


@pytest.mark.parametrize(
    ("partition", "stages", "page", "states"),
    # Of the 64 layers each fourth has attention. The states are in three groups.
    [(None, [21, 22, 21], 3 * 6, 3 * 3 * 6), ("3,60,1", [3, 60, 1], 3 * 15, 3 * 3 * 15)],
)
def test_stages_of_other_sizes_have_zeros(
    capsys, model, monkeypatch, partition, stages, page, states
):
    if partition is not None:
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", partition)
    words = [model(QWEN36_27B), "--pp", "3"]
    found = planned(capsys, *words)
    one_page, one_state = 784 * 4096, 61_440 + 3_145_728
    assert found["stages"] == stages
    assert (found["page_bytes"], found["checkpoint_bytes"]) == (
        page * one_page,
        states * one_state,
    )
    assert found["zero_bytes"] == {
        "page": (page - 16) * one_page,
        "checkpoint": (states - 48) * one_state,
    }
    assert found["bytes_per_token"] == 16 * 4096
    assert cli.main(["plan", *words]) == 0
    assert "of a checkpoint are zeros" in capsys.readouterr().out


def test_layers_that_keep_nothing_count_for_stages(capsys, model):
    config = config_of("NemotronHForCausalLM") | {"num_hidden_layers": 8}
    config |= {"hybrid_override_pattern": "M-M-M-*-"}
    assert planned(capsys, model(config), "--pp", "2")["stages"] == [2, 2]
    assert planned(capsys, model(config), "--pp", "8")["stages"] == [1, 0] * 4


def test_settings_are_whole_on_a_narrow_terminal(capsys, model):
    found = planned(capsys, model(QWEN36_27B))
    console = Console(width=40, file=io.StringIO())
    show(found, console)
    shown = "".join(line[:13].strip() for line in console.file.getvalue().splitlines())
    assert "--max-num-batched-tokens" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in console.file.getvalue()


def test_a_step_may_be_short_where_there_are_no_states(capsys, model):
    found = planned(capsys, model(config_of("LlamaForCausalLM")))
    assert not any("max-num-batched" in row["setting"] for row in found["settings"])


def test_restoring_pays_from_some_length_on(capsys, model):
    words = [model(QWEN36_27B), "--active-params", "27", "--tflops", "400"]
    assert planned(capsys, *words)["break_even"] is None
    fast = planned(capsys, *words, "--gb-per-s", "50")
    slow = planned(capsys, *words, "--gb-per-s", "1")
    # 0.135 ms a token to compute; a page of 1 ms and a checkpoint of 3.1 ms to copy, or 50 times
    # as long. Then 3 pages pay if the last one is nearly full, and 4 if it is not nearly empty.
    assert fast["break_even"]["tokens"] == 31
    assert slow["break_even"]["tokens"] == 2663
    whole = planned(capsys, *words, "--gb-per-s", "1", "--drafts", "2")
    assert whole["break_even"]["tokens"] == 3 * whole["block_tokens"]
    never = planned(capsys, *words[:-1], "4000", "--gb-per-s", "0.1")
    assert never["break_even"]["tokens"] is None


def test_drafts_make_states_wider(capsys, model):
    found = planned(capsys, model(QWEN36_27B), "--drafts", "2")
    assert found["checkpoint_bytes"] == 48 * (10240 * 5 * 2 + 3_145_728)
    assert found["block_tokens"] == 800


def test_windows_are_copied_once_and_not_for_each_token(capsys, model):
    config = config_of("Gemma3ForCausalLM")  # 2 of 8 layers see everything, 6 see 512 tokens
    words = [model(config), "--active-params", "12", "--tflops", "400", "--gb-per-s", "0.15"]
    found = planned(capsys, *words)
    # 60 us a token to compute; 8 KiB of it to copy, 55 us, and once 512 times 24 KiB of windows.
    per_token = 2 * 12e9 / 400e12 - (8 << 10) / 0.15e9
    expected = 512 * (24 << 10) / 0.15e9 / per_token
    n = found["block_tokens"]
    assert expected < found["break_even"]["tokens"] <= expected + 2 * n
    assert found["break_even"]["tokens"] % n == 0


def test_memory_grows_with_attention_alone(capsys, model):
    rows = planned(capsys, model(QWEN36_27B))["memory"]
    assert [row["tokens"] for row in rows] == [4096 << power for power in range(9)]
    longest = rows[-1]
    assert longest["full_attention_bytes"] == 64 * 4096 << 20
    assert 0.25 < longest["bytes"] / longest["full_attention_bytes"] < 0.251
    words = [model(QWEN36_27B), "--device", "cpu", "--block-size", "8192"]
    found = planned(capsys, *words)
    assert found["memory"][0]["bytes"] == found["page_bytes"] + found["checkpoint_bytes"]
    assert planned(capsys, *words, "--drafts", "2")["memory"][0]["bytes"] == 0


def test_a_model_without_states_needs_no_checkpoints(capsys, model):
    found = planned(capsys, model(config_of("LlamaForCausalLM")), "--host-gb", "1")
    assert (found["checkpoint_bytes"], found["states"]) == (0, None)
    assert [mode["mode"] for mode in found["modes"]] == ["any"]
    assert cli.main(["plan", model(config_of("LlamaForCausalLM"))]) == 0
    assert "none: no recurrent layers" in capsys.readouterr().out


def test_the_layers_of_falcon_h1_are_both(capsys, model):
    found = planned(capsys, model(config_of("FalconH1ForCausalLM")))
    assert [row["count"] for row in found["layers"]] == [8, 8]
    per_token = found["bytes_per_token"]
    assert found["memory"][-1]["full_attention_bytes"] == per_token << 20


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(capsys, model, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"memory{suffix}"
    planned(capsys, model(QWEN36_27B), "--plot", str(picture))
    assert picture.stat().st_size > 5000


@pytest.mark.parametrize(
    ("config", "words", "reason"),
    [
        (QWEN36_27B, ["--tp", "3"], "--tp: expected a divisor"),
        (QWEN36_27B, ["--block-size", "17"], "--block-size: expected a multiple of 16"),
        (
            config_of("LlamaForCausalLM"),
            ["--device", "cpu", "--block-size", "16"],
            "--block-size: expected a multiple of 32",
        ),
        (QWEN36_27B, ["--pp", "65"], "at most one stage for each of 64 layers, found 65"),
        (QWEN36_27B, ["--pp", "2", "--drafts", "2"], "--drafts: expected none with pipeline"),
        (QWEN36_27B, ["--tp", "2", "--nodes", "4"], "--nodes: expected a divisor of 2 ranks"),
        (
            QWEN36_27B,
            ["--tp", "2", "--nodes", "2", "--disk-gb", "9"],
            "--disk-gb: expected none on 2 nodes",
        ),
        (config_of("Zamba2ForCausalLM"), ["--pp", "2"], "without pipeline stages only"),
        (QWEN36_27B, ["--plot", "memory.txt"], "--plot: expected a name that ends in .png"),
        ({"architectures": ["MambaForCausalLM"]}, [], "without prefix caching"),
        ({"architectures": ["BambaForCausalLM"]}, [], "BambaForCausalLM: vLLM runs it no more"),
        ({"architectures": ["NewForCausalLM"]}, [], "expected a model class that is known here"),
        ({}, [], "expected a model class that is known here, found none"),
        ({"model_type": ["x"]}, [], "(['x']): model_type: expected a string"),
    ],
)
def test_what_cannot_be_planned_is_refused(capsys, model, config, words, reason):
    assert cli.main(["plan", model(config), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("hybrid-pages plan: ")
    assert reason in printed.err


@pytest.mark.parametrize(
    "words",
    [
        ["--kv-dtype", "int3"],
        ["--host-gb", "0"],
        ["--tp", "0"],
        ["--pp", "0"],
        ["--device", "tpu"],
        ["--turns"],
    ],
)
def test_wrong_words_are_lines_of_usage(capsys, model, words):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["plan", model(QWEN36_27B), *words])
    assert exit_.value.code == 2
    assert ": error: " in capsys.readouterr().err
