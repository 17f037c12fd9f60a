"""Bytes of pages and checkpoints, read from a model's configuration."""

import json

import pytest

from hybrid_pages import cli
from hybrid_pages.lab.model import ModelError, read_model
from model_configs import QWEN36_27B

DELTA_NET = dict(
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
)
# Sizes of the published configurations, in the words of their files.
QWEN3_NEXT = dict(
    model_type="qwen3_next",
    torch_dtype="bfloat16",
    hidden_size=2048,
    layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
    num_attention_heads=16,
    num_key_value_heads=2,
    head_dim=256,
    **DELTA_NET | dict(linear_num_value_heads=32),
)
LFM2 = dict(
    model_type="lfm2",
    torch_dtype="bfloat16",
    hidden_size=1024,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=8,
    full_attn_idxs=[2, 5, 8, 10, 12, 14],
    conv_L_cache=3,
)
NEMOTRON_H = dict(
    model_type="nemotron_h",
    torch_dtype="bfloat16",
    hidden_size=4096,
    hybrid_override_pattern="M-M*-ME",
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    mamba_num_heads=128,
    mamba_head_dim=64,
    n_groups=8,
    ssm_state_size=128,
    conv_kernel=4,
)
GRANITE = dict(
    model_type="granitemoehybrid",
    torch_dtype="bfloat16",
    hidden_size=1536,
    layer_types=["mamba"] * 9 + ["attention"],
    num_attention_heads=12,
    num_key_value_heads=4,
    mamba_expand=2,
    mamba_n_heads=48,
    mamba_d_head="auto",
    mamba_d_state=128,
    mamba_n_groups=1,
    mamba_d_conv=4,
)
JAMBA = dict(
    model_type="jamba",
    torch_dtype="bfloat16",
    hidden_size=4096,
    num_hidden_layers=8,
    num_attention_heads=32,
    num_key_value_heads=8,
    attn_layer_period=8,
    attn_layer_offset=4,
    mamba_expand=2,
    mamba_d_state=16,
    mamba_d_conv=4,
)


def model(tmp_path, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return read_model(path)


@pytest.mark.parametrize(
    ("config", "layers", "token_bytes", "checkpoint_bytes"),
    [
        (QWEN36_27B, (16, 48), 16 * 4096, 48 * (10240 * 3 * 2 + 48 * 128 * 128 * 4)),
        (QWEN3_NEXT, (2, 6), 2 * 2048, 6 * (8192 * 3 * 2 + 32 * 128 * 128 * 2)),
        (LFM2, (6, 10), 6 * 2048, 10 * 1024 * 2 * 2),
        (NEMOTRON_H, (1, 3), 4096, 3 * (10240 * 3 * 2 + 128 * 64 * 128 * 4)),
        (GRANITE, (1, 9), 2048, 9 * (3328 * 3 * 2 + 48 * 64 * 128 * 2)),
        (JAMBA, (1, 7), 4096, 7 * 8192 * (3 + 16) * 2),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_sizes_follow_from_the_configuration(
    tmp_path, config, layers, token_bytes, checkpoint_bytes
):
    found = model(tmp_path, config)
    assert (found.attention_layers, found.recurrent_layers) == layers
    assert (found.token_bytes, found.checkpoint_bytes) == (token_bytes, checkpoint_bytes)


def test_the_block_that_vllm_chooses_for_qwen36_27b_makes_a_checkpoint_three_pages(tmp_path):
    found = model(tmp_path, QWEN36_27B)
    assert found.page_bytes(784) == 49 << 20
    assert found.ratio(784) == 3
    assert found.exact_ratio(784) == pytest.approx(2.996, abs=0.001)


def test_a_checkpoint_is_never_rounded_to_nothing(tmp_path):
    assert model(tmp_path, LFM2).ratio(512) == 1


def test_the_fields_of_a_short_convolution_may_name_its_width(tmp_path):
    assert model(tmp_path, LFM2 | {"conv_dim": 512}).checkpoint_bytes == 10 * 512 * 2 * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layer_types": ["full_attention"]}, "found full attention"),
        ({"layer_types": ["mamba"]}, "found Mamba-2"),
        (
            {"layer_types": ["mamba", "attention", "sliding_attention"]},
            "unknown kind: sliding_attention",
        ),
        ({"layer_types": None}, "which say what each layer is"),
        ({"mamba_d_state": None}, "mamba_d_state: expected a positive integer, found None"),
        ({"mamba_n_heads": 1.5}, "mamba_n_heads: expected a positive integer, found 1.5"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: expected a positive integer"),
        ({"torch_dtype": "float8"}, "dtype: expected bfloat16, float16, float32"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path, change, reason):
    with pytest.raises(ModelError, match=r"config\.json \(granitemoehybrid\)") as error:
        model(tmp_path, GRANITE | change)
    assert reason in str(error.value)
    assert "--ratio" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xff", b'{"text_config": 3}', b"{}"])
def test_a_file_that_is_no_configuration_is_refused_by_name(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model(tmp_path)


def test_a_missing_model_is_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match="nothing"):
        read_model(tmp_path / "nothing")


@pytest.fixture
def qwen(tmp_path):
    """The words that replay 40 blocks, twice each, with a model of 49 MiB a page."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN36_27B))
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": at, "input_length": 785, "output_length": 1, "hash_ids": [at % 40]}
        for at in range(80)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ["lab", "replay", str(trace), "--model", str(tmp_path), "--trace-block", "784"]


def objects(capsys, words):
    """The JSON objects that a command prints."""
    assert cli.main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_size_in_gib_becomes_pages_of_the_model(capsys, qwen):
    words = [*qwen, "--policy", "lru", "--budget", "10%,1GiB,0.5GiB"]
    rows = objects(capsys, words)
    # 49 MiB a page; the footprint is 40 pages and 40 checkpoints of 3.
    assert [(row["budget_units"], row["budget_fraction"]) for row in rows] == [
        (16, 0.1),
        (20, 20 / 160),
        (10, 10 / 160),
    ]
    assert {(row["ratio"], row["page_bytes"]) for row in rows} == {(3, 49 << 20)}
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "as much room as 3 pages (2.996, rounded)" in printed
    assert "51,380,224 bytes per page" in printed


# What the whole trace of 40 pages and 40 checkpoints of 3 needs.
NEED = 160 * (49 << 20)


def test_a_size_beyond_the_whole_trace_is_a_share_of_one(capsys, qwen):
    sizes = {"7839MiB": False, "7840MiB": True, "64GiB": True, "1023TiB": True}
    words = [*qwen, "--policy", "lru,bound", "--budget", ",".join(["100%", *sizes])]
    rows = objects(capsys, words)
    assert {(row["footprint_units"], row["footprint_bytes"]) for row in rows} == {(160, NEED)}
    for policy in ("lru", "bound"):
        whole, *sized = (row for row in rows if row["policy"] == policy)
        assert (whole["requested_bytes"], whole["holds_trace"]) == (None, True)
        assert [row["requested_bytes"] for row in sized] == [
            7839 << 20,
            NEED,
            64 << 30,
            1023 << 40,
        ]
        assert [row["holds_trace"] for row in sized] == list(sizes.values())
        assert [row["budget_fraction"] for row in sized] == [159 / 160, 1, 1, 1]
        assert {row["hit_tokens"] for row in (whole, *sized[1:])} == {40 * 784}


def test_the_table_says_once_that_a_size_holds_the_whole_trace(capsys, qwen):
    said = "the whole trace, which needs 7.7 GiB: replayed with that, a share of 1"
    for budget, line in (
        ("5%,64GiB", f"64GiB holds {said}"),
        ("1GiB,64GiB,1023TiB", f"64GiB and 1023TiB hold {said}"),
    ):
        assert cli.main([*qwen, "--policy", "lru,bound", "--budget", budget]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [found for found in lines if "whole trace" in found] == [line]
        (head,) = [found.split() for found in lines if found.startswith("hit rate")]
        assert head[2:] == budget.split(",")
        (shares,) = [found.split() for found in lines if found.startswith("(share)")]
        assert max(map(float, shares[1:])) == 1
    assert cli.main([*qwen, "--policy", "lru", "--budget", "100%,1GiB"]) == 0
    assert "whole trace" not in capsys.readouterr().out


def test_each_trace_has_a_need_of_its_own(capsys, qwen, tmp_path):
    short = tmp_path / "short.jsonl"
    lines = (tmp_path / "trace.jsonl").read_text().splitlines(keepends=True)
    short.write_text("".join(lines[:20]))
    words = [*qwen[:3], str(short), *qwen[3:], "--policy", "lru", "--budget", "50%,4GiB"]
    rows = objects(capsys, words)
    # 4 GiB are 83 pages: more than the 20 blocks of the second need, 80, and less than 160.
    assert [(row["budget_units"], row["budget_fraction"], row["holds_trace"]) for row in rows] == [
        (80, 0.5, False),
        (83, 83 / 160, False),
        (40, 0.5, False),
        (80, 1, True),
    ]
    assert [row["trace"] for row in rows[::2]] == [qwen[2], str(short)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("budget", "shares"), [("1MiB,10%,1GiB,64GiB,1023TiB", [10, 12.5, 100, 100]), ("1MiB", [])]
)
def test_a_plot_shows_shares_above_0_up_to_1(monkeypatch, qwen, tmp_path, budget, shares):
    figure = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    drawn, save = [], figure.Figure.savefig

    def saved(self, *words, **options):
        (panel,) = self.axes
        drawn.extend([round(share, 6) for share in line.get_xdata()] for line in panel.lines)
        save(self, *words, **options)

    monkeypatch.setattr(figure.Figure, "savefig", saved)
    path = tmp_path / "picture.png"
    words = ["--policy", "lru,bound", "--budget", budget, "--plot", str(path)]
    assert cli.main([*qwen, *words]) == 0
    assert drawn == [shares, shares]
    assert path.read_bytes().startswith(b"\x89PNG")
