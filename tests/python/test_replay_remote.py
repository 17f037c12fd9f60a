"""`hybrid-pages lab replay --remote`: what crosses the network, against a model without the lab."""

import json
import math
import random

import pytest

from hybrid_pages import InvalidArgumentError, cli
from hybrid_pages.lab import Link, Trace, replay_traces
from hybrid_pages.lab.remote import way
from test_replay import CONVERSATION, REQUESTS, ROOT, refusal, replay, request, written
from test_replay_model import QWEN36_27B

BLOCK = 512
LINK = dict(
    latency=0.02,
    bandwidth=1e9,
    page_bytes=32 << 20,
    checkpoint_bytes=96 << 20,
    tokens_per_second=7000,
)


def by_hand(requests, link, admit):
    """A store below a host that keeps nothing, with a checkpoint at every boundary: so every hit is
    fetched, and every block of a prompt is there to upload after it."""
    pages, checkpoints, passed = set(), set(), set()
    out = dict(hit_tokens=0, slow_tokens=0, up_bytes=0, down_bytes=0, saved_seconds=0.0)
    page, checkpoint = link["page_bytes"], link["checkpoint_bytes"]
    for row in requests:
        tokens = row["input_length"]
        chain = [tuple(row["hash_ids"][: at + 1]) for at in range(tokens // BLOCK)]
        there = 0
        while there < len(chain) and chain[there] in pages:
            there += 1
        found = min(there, (tokens - 1) // BLOCK)
        while found and chain[found - 1] not in checkpoints:
            found -= 1
        if found:
            size = found * page + checkpoint
            computing = found * BLOCK / link["tokens_per_second"]
            saved = computing - link["latency"] - size / link["bandwidth"]
            if saved <= 0:
                out["slow_tokens"] += found * BLOCK
            if saved > 0 or admit == "all":
                out["hit_tokens"] += found * BLOCK
                out["down_bytes"] += size
                out["saved_seconds"] += saved
        for key in chain:
            if admit == "all" or key in passed:
                out["up_bytes"] += page * (key not in pages) + checkpoint * (key not in checkpoints)
                pages.add(key)
                checkpoints.add(key)
        passed.update(chain)
    return out


def crossed(row):
    names = ("hit_tokens", "slow_tokens", "up_bytes", "down_bytes", "saved_seconds")
    return {name: getattr(row, f"remote_{name}") for name in names}


def rows(trace, policy="lru", units=0, **change):
    return replay_traces([trace], [policy], ratio=3, units=[units], remote=Link(**LINK | change))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"bandwidth": 3e9},
        {"latency": 2.0},
        {"latency": 0.0, "bandwidth": 1e15},
        {"bandwidth": 4e8},
    ],
)
def test_what_crosses_is_what_a_model_counts(tmp_path, change):
    rng = random.Random(7)
    requests, chains = [], [[at] for at in range(4)]
    for at in range(400):
        chain = list(rng.choice(chains)[: rng.randint(1, 40)])
        chain += [1000 + at * 50 + more for more in range(rng.randint(0, 12))]
        chains.append(chain)
        requests.append(request(at * 1000, chain, len(chain) * BLOCK + rng.choice([0, 1, 300])))
    trace = Trace.open(written(tmp_path / "trace.jsonl", requests))
    found = rows(trace, **change)
    assert [row.remote_admit for row in found] == ["auto", "all"]
    seen = []
    for row in found:
        expected = by_hand(requests, LINK | change, row.remote_admit)
        assert crossed(row) == pytest.approx(expected, rel=1e-9)
        assert row.hit_tokens == expected["hit_tokens"]
        seen.append(expected)
    auto, everything = seen
    assert auto["up_bytes"] < everything["up_bytes"]


def test_a_model_that_forgets_the_checkpoint_is_found_out(tmp_path):
    trace = Trace.open(written(tmp_path / "trace.jsonl", REQUESTS))
    wrong = by_hand(REQUESTS, LINK | {"checkpoint_bytes": 1}, "all")
    assert crossed(rows(trace)[1]) != pytest.approx(wrong, rel=1e-9)


@pytest.mark.parametrize(
    "change", [{}, {"latency": 1.5}, {"checkpoint_bytes": 1}, {"bandwidth": 5e8}]
)
def test_the_break_even_is_where_fetching_begins_to_pay(change):
    numbers = LINK | change
    fetch = lambda tokens: (  # noqa: E731
        numbers["latency"]
        + (tokens * numbers["page_bytes"] / BLOCK + numbers["checkpoint_bytes"])
        / numbers["bandwidth"]
    )
    tokens = Link(**numbers).break_even(BLOCK)
    assert fetch(tokens) < tokens / numbers["tokens_per_second"]
    assert fetch(tokens - 1) >= (tokens - 1) / numbers["tokens_per_second"] * (1 - 1e-9)


def test_a_network_slower_than_computing_has_no_break_even():
    # 64 KiB a token at 0.4 GB/s is 6,104 tokens a second.
    assert Link(**LINK | {"bandwidth": 4e8}).break_even(BLOCK) is None


def test_what_the_host_has_is_not_fetched(tmp_path):
    trace = Trace.open(written(tmp_path / "trace.jsonl", REQUESTS))
    for row in rows(trace, units=10**6):
        assert (row.remote_hit_tokens, row.remote_down_bytes, row.remote_saved_seconds) == (0, 0, 0)
        assert row.hit_tokens > 0
        assert row.remote_up_bytes > 0


def test_one_shot_prompts_are_uploaded_by_all_alone(tmp_path):
    requests = [request(at * 1000, [at]) for at in range(9)]
    auto, everything = rows(Trace.open(written(tmp_path / "trace.jsonl", requests)))
    assert auto.remote_up_bytes == 0
    assert everything.remote_up_bytes == 9 * (32 + 96 << 20)


def test_objects_have_the_promised_fields_and_null_for_the_bound(capsys, tmp_path):
    trace = written(tmp_path / "trace.jsonl", REQUESTS)
    words = ["--policy", "lru,bound", "--budget", "10%,100%", "--remote", "20ms,1GB/s"]
    found = replay(capsys, trace, *words)
    assert [(row["policy"], row["remote_admit"], row["budget_fraction"]) for row in found] == [
        ("lru", "auto", 0.1),
        ("lru", "auto", 1.0),
        ("lru", "all", 0.1),
        ("lru", "all", 1.0),
        ("bound", None, 0.1),
        ("bound", None, 1.0),
    ]
    assert {row["remote_break_even_tokens"] for row in found} == {Link(**LINK).break_even(BLOCK)}
    assert {row["remote_up_bytes"] for row in found[4:]} == {None}
    # Nothing that was published is lost: a bound on that has no budget.
    assert found[4]["hit_tokens"] == found[5]["hit_tokens"] == (4 * 3 + 2) * 512
    (plain,) = replay(capsys, trace, "--policy", "lru", "--budget", "10%")
    assert not [name for name in plain if name.startswith("remote")]


def test_a_model_gives_the_bytes(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN36_27B))
    trace = written(tmp_path / "trace.jsonl", REQUESTS)
    words = [trace, "--policy", "lru", "--budget", "50%", "--remote", "1ms,25Gbit/s"]
    (row, _) = replay(capsys, *words, "--model", tmp_path, "--compute", "5000")
    assert row["remote_page_bytes"] == 16 * 4096 * 512
    assert row["remote_checkpoint_bytes"] == 48 * (10240 * 3 * 2 + 48 * 128 * 128 * 4)
    assert row["remote_tokens_per_second"] == 5000
    (row, _) = replay(capsys, *words, "--token-bytes", "1024")
    assert row["remote_page_bytes"] == 1024 * 512


def test_the_table_says_what_is_assumed(capsys, tmp_path):
    trace = written(tmp_path / "trace.jsonl", REQUESTS)
    words = ["lab", "replay", str(trace), "--policy", "lru,bound", "--budget", "10%", "--remote"]
    assert cli.main([*words, "20ms,1GB/s"]) == 0
    printed = capsys.readouterr().out
    assert "assumed: 64.0 KiB per token (--model, --token-bytes), 7,000 tokens a second" in printed
    for title in ("tokens fetched", "not worth it", "uploaded", "downloaded", "seconds saved"):
        (at,) = [
            at for at, line in enumerate(printed.splitlines()) if line.startswith(f"{title}  ")
        ]
        names = [line.split("  ")[0] for line in printed.splitlines()[at + 1 : at + 3]]
        assert names == ["lru, auto", "lru, all"]
    assert cli.main([*words, "20ms,100MB/s", "--token-bytes", "65536", "--compute", "7000"]) == 0
    printed = capsys.readouterr().out
    assert "assumed" not in printed
    assert "break-even: none: every prefix is faster to compute" in printed


def test_the_published_example_is_what_the_command_prints(capsys):
    text = (ROOT / "docs" / "replay.md").read_text()
    example = text.partition("    hit rate      0.5%     2%    10%\n")[2]
    words = ["--policy", "reuse", "--budget", "0.5%,2%,10%", "--remote", "20ms,1GB/s"]
    printed = {}
    for row in replay(capsys, CONVERSATION, *words):
        printed.setdefault(f"reuse, {row['remote_admit']}", []).append(row["hit_rate"])
    for line in example.splitlines()[:2]:
        name, *rates = [cell.strip() for cell in line.split("  ") if cell.strip()]
        assert printed.pop(name) == pytest.approx([float(rate) for rate in rates], abs=0.02)
    assert not printed


def test_a_plot_with_a_remote_store_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    trace = written(tmp_path / "trace.jsonl", REQUESTS)
    path = tmp_path / "picture.png"
    words = ["--policy", "lru,bound", "--remote", "1ms,1GB/s", "--plot", str(path)]
    assert cli.main(["lab", "replay", str(trace), *words]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "latency", "bandwidth"),
    [
        ("20ms,1GB/s", 0.02, 1e9),
        ("150us, 25 Gbit/s", 150e-6, 25e9 / 8),
        ("0s,512MiB/s", 0, 512 << 20),
        (".5s,1.5GiB/s", 0.5, 1.5 * (1 << 30)),
        ("1ms,800MB/s", 0.001, 8e8),
    ],
)
def test_a_link_is_read_with_its_units(text, latency, bandwidth):
    found = way(text)
    assert math.isclose(found.latency, latency)
    assert math.isclose(found.bandwidth, bandwidth)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--remote", "20ms"], "such as 20ms,1GB/s"),
        (["--remote", "20,1GB/s"], "such as 20ms,1GB/s"),
        (["--remote", "20ms,1GB"], "a bandwidth in MB/s"),
        (["--remote", "20ms,0GB/s"], "a bandwidth above 0"),
        (["--remote=-1ms,1GB/s"], "such as 20ms,1GB/s"),
        (["--remote", f"{'9' * 5000}ms,1GB/s"], "such as 20ms,1GB/s"),
        (["--remote", "1ms,1GB/s", "--disk", "10%"], "not allowed with"),
        (["--remote", "1ms,1GB/s", "--compute", "0"], "expected a whole number from 1"),
        (["--remote", "1ms,1GB/s", "--token-bytes", "-1"], "expected a whole number from 1"),
        (["--remote", "1ms,1GB/s", "--token-bytes", "1", "--model", "."], "the model says"),
        (["--compute", "5"], "need --remote"),
        (["--token-bytes", "5"], "need --remote"),
    ],
)
def test_what_is_no_link_is_refused(capsys, tmp_path, words, reason):
    assert reason in refusal(capsys, written(tmp_path / "trace.jsonl", REQUESTS), *words)


@pytest.mark.parametrize(
    "change",
    [
        {"latency": -1.0},
        {"latency": math.nan},
        {"bandwidth": 0.0},
        {"bandwidth": math.inf},
        {"page_bytes": 0},
        {"checkpoint_bytes": 0},
        {"tokens_per_second": 0.0},
    ],
)
def test_numbers_that_no_link_has_are_refused(change):
    with pytest.raises(InvalidArgumentError, match="expected"):
        Link(**LINK | change)


def test_a_disk_and_a_remote_store_at_once_are_refused(tmp_path):
    trace = Trace.open(written(tmp_path / "trace.jsonl", REQUESTS))
    with pytest.raises(InvalidArgumentError, match="found both"):
        replay_traces([trace], ["lru"], ratio=3, units=[1], disk=(0.5, "lru"), remote=Link(**LINK))
    with pytest.raises(InvalidArgumentError, match="block_tokens"):
        Link(**LINK).break_even(0)
