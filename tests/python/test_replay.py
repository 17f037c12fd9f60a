"""`hybrid-pages lab replay`: what it prints, what it refuses, and with which status."""

import gzip
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hybrid_pages import InvalidArgumentError, cli
from hybrid_pages._core import POLICIES
from hybrid_pages.lab import Trace, TraceError, replay_traces

ROOT = Path(__file__).parents[2]
CONVERSATION = ROOT / "tests" / "data" / "mooncake_conversation_trace.jsonl.zst"
FIELDS = [
    "trace",
    "policy",
    "ratio",
    "budget_fraction",
    "budget_units",
    "requests",
    "input_tokens",
    "hit_tokens",
    "hit_rate",
    "written_units",
    "state_share",
    "policy_us_per_request",
    "metadata_bytes",
]
HEADER = {"format": "hybrid-pages-trace", "version": 1, "block_tokens": 784}


def request(time, hashes, tokens=None, block=512):
    return {
        "timestamp": time,
        "input_length": len(hashes) * block + 1 if tokens is None else tokens,
        "output_length": 10,
        "hash_ids": hashes,
    }


# Four prompts come twice, a shared first block apart from one of them.
REQUESTS = [request(at * 1000, [at % 4 // 3, 10 + at % 4, 20 + at % 4]) for at in range(8)]


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def trace(tmp_path):
    return written(tmp_path / "trace.jsonl", REQUESTS)


def replay(capsys, *words):
    """The JSON objects that a replay prints."""
    assert cli.main(["lab", "replay", "--json", *map(str, words)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refusal(capsys, *words):
    """The error printed for a replay that can't be done."""
    try:
        status = cli.main(["lab", "replay", *map(str, words)])
    except SystemExit as exit_:
        status = exit_.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert "Traceback" not in printed.err
    return printed.err


def test_each_trace_policy_and_budget_is_an_object_with_the_promised_fields(capsys, trace):
    rows = replay(
        capsys, trace, trace, "--policy", "lru,bound", "--budget", "0.5%,20%,7%", "--ratio", "2"
    )
    assert all(list(row)[: len(FIELDS)] == FIELDS for row in rows)
    assert [(row["policy"], row["budget_fraction"]) for row in rows] == [
        (policy, share) for policy in ("lru", "bound") for share in (0.005, 0.2, 0.07)
    ] * 2
    assert {row["trace"] for row in rows} == {str(trace)}
    assert {(row["requests"], row["input_tokens"], row["ratio"]) for row in rows} == {
        (8, 8 * 1537, 2)
    }


def test_hits_are_counted_in_full_blocks_of_what_came_before(capsys, trace):
    # 2 shared first blocks and 8 others: 10 blocks, and each prompt returns once, 3 blocks deep.
    (row, bound) = replay(capsys, trace, "--policy", "page-lru,bound", "--budget", "100%")
    assert row["budget_units"] == 10 * 4
    first_blocks_before_any_return = 2
    assert row["hit_tokens"] == (4 * 3 + first_blocks_before_any_return) * 512
    assert row["hit_rate"] == row["hit_tokens"] / row["input_tokens"]
    assert row["written_units"] == 40
    assert bound["hit_tokens"] == row["hit_tokens"]


def test_what_a_bound_does_not_have_is_null(capsys, trace):
    (row,) = replay(capsys, trace, "--policy", "bound", "--budget", "20%")
    assert [name for name in FIELDS if row[name] is None] == [
        "written_units",
        "state_share",
        "policy_us_per_request",
        "metadata_bytes",
    ]


def test_the_shared_trace_replays_to_the_published_figures(capsys):
    published = {"page-lru": 0.208, "align-lru": 0.313, "junction-lru": 0.320}
    names = ",".join([*published, "reuse", "bound"])
    rows = replay(capsys, CONVERSATION, "--policy", names, "--budget", "5%")
    rates = {row["policy"]: row["hit_rate"] for row in rows}
    assert {name: pytest.approx(rate, abs=0.003) for name, rate in published.items()} == {
        name: rates[name] for name in published
    }
    assert max(rates[name] for name in published) < rates["reuse"] < rates["bound"]
    assert {row["budget_units"] for row in rows} == {170_899 * 4 // 20}


def test_the_table_of_the_readme_is_what_the_command_prints(capsys):
    rows = replay(capsys, CONVERSATION)
    printed = {}
    for row in rows:
        printed.setdefault(row["policy"], []).append(row["hit_rate"])
    shown = {}
    for line in (ROOT / "docs" / "replay.md").read_text().splitlines():
        name, *rates = line.split() or [""]
        if line.startswith("    ") and name in printed:
            shown[name] = [float(rate) for rate in rates]
    assert list(shown) == list(printed)
    # A policy may be tuned without a new table, but not by much.
    assert shown == {name: pytest.approx(rates, abs=0.02) for name, rates in printed.items()}


@pytest.mark.long
def test_the_table_of_known_sessions_is_what_the_command_prints(capsys):
    shown = {}
    for line in (ROOT / "docs" / "hints.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 8 and cells[1].startswith("."):
            shown[cells[0].strip("`")] = [float(cell) for cell in cells[1:]]
    assert list(shown) == ["ignore", "derive", "returning"]
    for sessions, rates in shown.items():
        words = [CONVERSATION, "--policy", "reuse", "--sessions", sessions]
        printed = [row["hit_rate"] for row in replay(capsys, *words)]
        assert rates == pytest.approx(printed, abs=0.01), sessions


def test_unknown_sessions_are_refused(trace):
    with pytest.raises(InvalidArgumentError, match="sessions: expected one of given, ignore"):
        Trace.open(trace, sessions="guess")


def test_a_disk_shows_what_it_adds_and_what_is_written_to_it(capsys, trace):
    words = ("--policy", "page-lru,bound", "--budget", "10%", "--disk", "100%")
    row, bound = replay(capsys, trace, *words)
    assert (row["disk_units"], row["disk_written_units"]) == (40, 40)
    assert 0 < row["disk_hit_tokens"] <= row["hit_tokens"]
    assert row["disk_read_units"] > 0
    assert bound["disk_written_units"] is None
    assert cli.main(["lab", "replay", str(trace), *words]) == 0
    printed = capsys.readouterr().out
    assert "with a disk of 40 pages below" in printed
    assert "from the disk" in printed and "per block restored" in printed


@pytest.mark.parametrize("share", ["20%,30%", "64GiB", "0%", "a lot"])
def test_a_disk_is_one_share(capsys, trace, share):
    assert "found" in refusal(capsys, trace, "--disk", share)


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        ({"priority": 11}, "priority: expected -10 to 10, found 11"),
        ({"retain": -1}, "retain: expected 0 to 86400 seconds"),
        ({"store": 1}, "store|boolean"),
        ({"session": 0.5}, "session"),
    ],
)
def test_a_wrong_hint_in_a_trace_is_refused(tmp_path, hint, reason):
    path = written(tmp_path / "wrong.jsonl", [REQUESTS[0] | hint])
    with pytest.raises(TraceError, match=reason):
        Trace.open(path)


def test_a_trace_may_say_what_to_keep_and_what_not_to_store(capsys, tmp_path):
    """One prompt comes twice, with six others in between and room for three."""
    hits = {}
    for hint, others in [(None, None), ("retain", None), (None, "store")]:
        first = {} if hint is None else {hint: 60}
        other = {} if others is None else {others: False}
        rows = [request(0, [1]) | first]
        rows += [request(at * 1000, [10 + at]) | other for at in range(1, 7)]
        path = written(tmp_path / "hints.jsonl", [*rows, request(7000, [1])])
        (row,) = replay(capsys, path, "--policy", "page-lru", "--budget", "50%", "--ratio", "1")
        hits[hint, others] = row["hit_tokens"] // 512
    assert hits == {(None, None): 0, ("retain", None): 1, (None, "store"): 1}


def test_every_policy_can_be_named(capsys, trace):
    rows = replay(capsys, trace, "--policy", ",".join(POLICIES), "--budget", "50%")
    assert tuple(row["policy"] for row in rows) == POLICIES


def test_the_table_shows_rates_by_policy_and_budget(capsys, trace):
    assert cli.main(["lab", "replay", str(trace), "--budget", "0.5%,100%"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"{trace}: 8 requests, 12,296 prompt tokens, 10 different blocks")
    (head,) = [line.split() for line in printed if line.startswith("hit rate")]
    assert head == ["hit", "rate", "0.5%", "100%"]
    (row,) = [line.split() for line in printed if line.startswith("page-lru")]
    assert row == ["page-lru", "0.000", "0.583"]
    assert "no policy can exceed it" in printed[-1]


def test_broken_lines_are_refused_with_file_and_number_or_counted(capsys, tmp_path):
    lines = [json.dumps(line) for line in REQUESTS]
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join([*lines[:4], "{", *lines[4:]]) + "\n")
    error = refusal(capsys, path)
    assert f"{path}, line 5: " in error
    words = [path, "--skip-bad", "--policy", "lru", "--budget", "20%"]
    (row,) = replay(capsys, *words)
    assert (row["requests"], row["skipped_lines"]) == (8, 1)
    assert cli.main(["lab", "replay", *map(str, words)]) == 0
    assert "1 broken line left out" in capsys.readouterr().out


# The same bytes in every process.
packed = partial(gzip.compress, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.jsonl", b"", "expected requests with prompts, found none"),
        ("blank.jsonl", b"\n \n", "expected requests with prompts, found none"),
        ("text.jsonl", b"some words\n", "line 1: expected a JSON object"),
        ("bytes.jsonl", b"\xff\xfe\x00{\n", "line 1: expected a JSON object"),
        ("cut.jsonl", json.dumps(REQUESTS[0]).encode()[:-9], "line 1: EOF"),
        ("cut.gz", packed(json.dumps(REQUESTS).encode())[:-9], "line 1: the file can't be"),
        ("damaged.gz", packed(b"{}")[:12] + b"\xff" * 40, "line 1: the file can't be read"),
        ("cut.zst", CONVERSATION.read_bytes()[:100_000], "the file can't be read on"),
        ("none.zst", b"\x28\xb5\x2f\xfd", "line 1: the file can't be read on"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(capsys, tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    error = refusal(capsys, path)
    assert str(path) in error
    assert reason in error


def test_paths_that_are_no_files_are_refused_by_name(capsys, tmp_path):
    assert f"{tmp_path}" in refusal(capsys, tmp_path)
    assert "No such file" in refusal(capsys, tmp_path / "missing.jsonl")


def test_a_trace_of_broken_lines_alone_is_refused(capsys, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text("{\n{\n")
    assert "found none and 2 broken lines" in refusal(capsys, path, "--skip-bad")


def test_gzip_is_read_to_its_last_member(tmp_path, trace):
    path = tmp_path / "trace.jsonl.gz"
    first, second = (json.dumps(line).encode() + b"\n" for line in REQUESTS[:2])
    path.write_bytes(gzip.compress(first) + gzip.compress(second))
    assert Trace.open(path).requests == 2


def test_zstd_is_read_to_its_last_frame_and_checked(tmp_path):
    frame = CONVERSATION.read_bytes()
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    path = tmp_path / "twice.zst"
    path.write_bytes(skippable + frame + skippable + frame)
    assert Trace.open(path).requests == 2 * 12_031
    has_checksum = frame[4] & 4
    assert has_checksum
    path.write_bytes(frame[:-1] + bytes([frame[-1] ^ 1]))
    with pytest.raises(TraceError, match="checksum"):
        Trace.open(path)


def test_a_pipe_is_read_like_a_file(trace):
    code = "import sys; from hybrid_pages.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["lab", "replay", "/dev/stdin", "--json", "--policy", "lru", "--budget", "20%"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], input=trace.read_bytes(), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests"] == 8
    # Not a terminal: no progress bar.
    assert done.stderr == b""


def test_a_recording_says_how_large_its_blocks_are(capsys, tmp_path):
    hashes = ["9f3c0a", "77aa01"]
    path = written(
        tmp_path / "recording.jsonl", [HEADER, *(request(at, hashes, 1600) for at in (1.5, 2.5))]
    )
    words = [path, "--policy", "lru", "--budget", "100%"]
    for more in [], ["--trace-block", "784"]:
        (row,) = replay(capsys, *words, *more)
        assert (row["block_tokens"], row["hit_tokens"]) == (784, 2 * 784)
    assert "expected blocks of 512 tokens" in refusal(capsys, *words, "--trace-block", "512")


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "other"}, {"block_tokens": 0}])
def test_a_recording_of_another_format_is_refused(capsys, tmp_path, change):
    path = written(tmp_path / "recording.jsonl", [HEADER | change, REQUESTS[0]])
    assert f"{path}, line 1: " in refusal(capsys, path, "--skip-bad")


def test_a_block_of_another_size_is_taken_from_the_command_line(capsys, tmp_path):
    path = written(tmp_path / "trace.jsonl", [request(at, [1, 2], block=16) for at in (0, 1)])
    (row,) = replay(capsys, path, "--trace-block", "16", "--policy", "lru", "--budget", "100%")
    assert row["hit_tokens"] == 2 * 16


def test_the_order_of_lines_is_not_the_order_of_requests(tmp_path, trace):
    shuffled = written(tmp_path / "shuffled.jsonl", REQUESTS[::-1])
    first, second = (
        replay_traces([Trace.open(path)], ["align-lru"], ratio=1, units=[9])
        for path in (trace, shuffled)
    )
    assert first[0].hit_tokens == second[0].hit_tokens


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (["--policy", "juntion-lru"], ["did you mean 'junction-lru'", *POLICIES, "bound"]),
        (["--policy", "lru,"], ["no policy is called ''"]),
        (["--budget", "0.005"], ["0.5%", "64GiB", "found '0.005'"]),
        (["--budget", "0%"], ["above 0"]),
        (["--budget", "-1%"], ["expected"]),
        (["--budget", "5%,,1%"], ["found ''"]),
        (["--budget", "nan"], ["expected"]),
        (["--budget", "5%,abc"], ["found 'abc'"]),
        (["--budget", "150%"], ["above 0% up to 100%", "found '150%'"]),
        (["--budget", "5%,100.0001%"], ["above 0% up to 100%", "found '100.0001%'"]),
        (["--budget", f"0.{'0' * 400}1%"], ["above 0%"]),
        (["--budget", "0GiB"], ["sizes above 0"]),
        (["--budget", "0.0000001MiB"], ["sizes above 0"]),
        (["--budget", "1024TiB"], ["below 1024TiB", "found '1024TiB'"]),
        (["--budget", "64GiB"], ["--model"]),
        (["--ratio", "0"], ["expected a whole number from 1"]),
        (["--ratio", "2.5"], ["expected a whole number from 1"]),
        (["--trace-block", "0"], ["expected a whole number from 1"]),
        (["--ratio", "3", "--model", "x"], ["not allowed with"]),
        (["--plot", "picture.jpeg"], [".png"]),
        (["--plot", "no/such/folder/picture.png"], ["expected a folder that exists"]),
    ],
)
def test_a_wrong_word_is_refused_with_what_was_expected(capsys, trace, words, reasons):
    error = refusal(capsys, trace, *words)
    assert [reason for reason in reasons if reason not in error] == []


def test_a_plot_without_matplotlib_says_what_to_install(capsys, monkeypatch, tmp_path, trace):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in refusal(capsys, trace, "--plot", tmp_path / "picture.png")


@pytest.mark.parametrize("traces", [1, 3])
def test_a_plot_is_drawn(capsys, tmp_path, trace, traces):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / "picture.png"
    assert cli.main(["lab", "replay", *[str(trace)] * traces, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_replay_shows_each_row_once_and_returns_them_in_order(trace):
    shown = []
    opened = Trace.open(trace)
    rows = replay_traces(
        [opened] * 2, ["lru", "bound"], ratio=3, fractions=[0.5], units=[7], done=shown.append
    )
    key = lambda row: (row.trace, row.policy, row.budget_units)  # noqa: E731
    assert [key(row) for row in rows] == [
        (at, policy, units) for at in (0, 1) for policy in ("lru", "bound") for units in (20, 7)
    ]
    assert sorted(map(key, shown)) == sorted(map(key, rows))


def test_an_error_where_rows_are_shown_ends_the_replay(trace):
    def show(row):
        raise RuntimeError(row.policy)

    with pytest.raises(RuntimeError, match="lru"):
        replay_traces([Trace.open(trace)], ["lru"] * 3, ratio=3, units=[7], done=show)


def test_an_interrupt_ends_a_replay_at_once(tmp_path):
    code = """
import os, signal, sys, threading
from hybrid_pages.cli import main
from hybrid_pages.lab import replay as lab

# Of a job in the background it is inherited ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def begun(*words, replay=lab.replay_traces, **options):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    return replay(*words, **options)

lab.replay_traces = begun
budgets = ",".join(f"{share / 100}%" for share in range(1, 4000))
sys.exit(main(["lab", "replay", sys.argv[1], "--policy", "bound", "--budget", budgets]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, CONVERSATION], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr == "hybrid-pages lab replay: interrupted\n"


@pytest.mark.parametrize(
    "change",
    [
        {"policies": ["nothing"]},
        {"ratio": 0},
        {"ratio": 1 << 32},
        {"fractions": [float("nan")]},
        {"fractions": [-0.1]},
        {"units": [-1]},
    ],
)
def test_a_replay_refuses_what_it_cannot_do(trace, change):
    words = {"policies": ["lru"], "ratio": 3, "units": [1]} | change
    with pytest.raises(InvalidArgumentError):
        replay_traces([Trace.open(trace)], **words)


def test_a_trace_says_what_it_holds(trace):
    opened = Trace.open(trace)
    assert (opened.requests, opened.block_tokens, opened.skipped) == (8, 512, 0)
    assert "requests=8" in repr(opened)
    with pytest.raises(InvalidArgumentError):
        Trace.open(trace, block_tokens=0)
