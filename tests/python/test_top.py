"""`hybrid-pages top`: figures between two looks, once and live, and an endpoint that goes away."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from endpoint import GOOD
from hybrid_pages import cli
from hybrid_pages.scrape import base_of, parse
from hybrid_pages.top.figures import figures
from hybrid_pages.top.view import view

# What runs in the background ignores interrupts, and so do its children.
CALL = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from hybrid_pages.cli import main; sys.exit(main(sys.argv[1:]))"
)


def test_the_text_format_is_read():
    samples = parse(
        '# HELP x y\nvllm:a_total{engine="0",reason="a\\"b\\\\c\\nd"} 1e3 1700000000\n'
        'vllm:a_total{engine="1",reason="x"} 2\nvllm:b NaN\nnonsense {\nvllm:c{} +Inf\n'
    )
    assert samples.sum("vllm:a") == samples.sum("vllm:a_total") == 1002
    assert samples.sum("vllm:a", engine="1") == 2
    assert samples.all("vllm:a")[0].labels["reason"] == 'a"b\\c\nd'
    assert samples.all("vllm:b") == []
    assert samples.sum("vllm:c") == float("inf")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "http://localhost:8000/",
        "http://localhost:8000/metrics",
        "http://localhost:8000/v1/",
    ],
)
def test_an_address_may_be_written_in_several_ways(url):
    assert base_of(url) == "http://localhost:8000"


def test_rates_are_those_of_the_interval():
    before, now = parse(GOOD), parse(GOOD.replace("5.0e4", "5.5e4").replace("100000", "110000"))
    found = figures(now, before, 2.0)
    assert found["prompt_tokens"] == 10_000
    assert found["hit_rate"] == found["hit_rates"]["host"] == 0.5
    assert found["missing_state_share"] == 0
    assert figures(now, None, 0)["hit_rate"] == 0.5
    # Nothing happened: no rate rather than a wrong one.
    assert figures(now, now, 2.0)["hit_rate"] is None


def test_an_engine_that_began_again_counts_from_zero():
    assert figures(parse(GOOD), parse(GOOD.replace("100000", "999999")), 1)["prompt_tokens"] == (
        100_000
    )


def test_an_engine_that_began_again_and_did_more_than_before_counts_from_zero():
    """Some of its counters are beyond what they were, and the others are not."""
    before = parse(
        GOOD.replace("5.0e4", "900").replace(
            'lookup_tokens_total{engine="0"} 100000', ('lookup_tokens_total{engine="0"} 1000')
        )
    )
    now = parse(GOOD.replace("5.0e4", "800").replace("100000", "2000"))
    found = figures(now, before, 1)
    assert (found["prompt_tokens"], found["hit_rate"]) == (2000, 0.4)


def test_an_engine_core_that_began_again_leaves_the_others_alone():
    def both(first: str, second: str):
        other = GOOD.replace('engine="0"', 'engine="1"')
        return parse(GOOD.replace("100000", first) + other.replace("100000", second))

    assert figures(both("40", "300"), both("1000", "100"), 1)["prompt_tokens"] == 40 + 200


def test_engine_cores_add_up():
    found = figures(parse(GOOD + GOOD.replace('engine="0"', 'engine="1"')), None, 0)
    assert (found["engines"], found["prompt_tokens"]) == (2, 200_000)
    assert found["host"]["bytes"]["pages"] == 1200


REMOTE = """vllm:hybrid_pages_hit_tokens_total{engine="0",source="remote"} 2.5e4
vllm:hybrid_pages_remote_bytes_total{engine="0",event="read"} 2048
vllm:hybrid_pages_remote_entries_total{engine="0",event="read"} 8
vllm:hybrid_pages_remote_entries_total{engine="0",event="unproven"} 21
vllm:hybrid_pages_remote_entries_total{engine="0",event="found"} 7
vllm:hybrid_pages_remote_seconds_total{engine="0",event="read"} 0.1
vllm:hybrid_pages_remote_requests_total{engine="0",kind="list"} 34
vllm:hybrid_pages_remote_not_worth_total{engine="0"} 5
vllm:hybrid_pages_remote_unanswered_total{engine="0"} 6
vllm:hybrid_pages_remote_outages_total{engine="0"} 2
vllm:hybrid_pages_remote_latency_seconds{engine="0"} 0.0021
vllm:hybrid_pages_remote_bytes_per_second{engine="0"} 3145728
vllm:hybrid_pages_remote_failures_total{engine="0",reason="deadline"} 3
vllm:hybrid_pages_remote_out{engine="0"} 0
vllm:hybrid_pages_remote_sharing{engine="0"} 1
"""


def test_hits_of_a_remote_store_count(capsys, server):
    assert figures(parse(GOOD), None, 0)["remote"] is None
    found = figures(parse(GOOD + REMOTE), None, 0)
    assert (found["hit_rates"]["remote"], found["hit_rate"]) == (0.25, 0.75)
    remote = found["remote"]
    assert remote["read_bytes"] == 2048
    assert remote["known_bytes"] is remote["known_entries"] is None
    assert remote["seconds_each"] == {"read": 0.0125}
    assert remote["not_written"] == {"unproven": 21}
    assert remote["not_read"] == {"not_worth": 5, "unanswered": 6}
    known = """vllm:hybrid_pages_remote_known_bytes{engine="0"} 4096
vllm:hybrid_pages_remote_known_entries{engine="0"} 12
"""
    assert cli.main(["top", "--once", "--url", server(GOOD + REMOTE + known)]) == 0
    printed = capsys.readouterr().out
    assert "12.5 ms each" in printed and "12 entries known" in printed
    for words in (
        "hit: remote",
        "75.0%",
        "remote: read",
        "3 remote: deadline",
        "not shared  21 unproven",
        "not fetched 5 faster to compute, 6 unanswered",
        "remote      answers in 2.1 ms, reads bring 3.0 MiB/s, left alone 2 times",
        "requests    34 list",
    ):
        assert words in printed


def test_engine_cores_share_one_remote_store(capsys, server):
    """What it has is there once; what was copied adds up; one core's trouble is the engine's."""
    known = 'vllm:hybrid_pages_remote_known_bytes{engine="0"} 4096\n'
    one = REMOTE + known
    other = one.replace('engine="0"', 'engine="1"').replace("4096", "5120")
    other = other.replace('out{engine="1"} 0', 'out{engine="1"} 1')
    other = other.replace('sharing{engine="1"} 1', 'sharing{engine="1"} 0')
    remote = figures(parse(GOOD + one + other), None, 0)["remote"]
    assert (remote["known_bytes"], remote["read_bytes"]) == (5120, 4096)
    assert (remote["out"], remote["sharing"]) == (True, False)
    assert cli.main(["top", "--once", "--url", server(GOOD + one + other)]) == 0
    assert "out: it failed or hung" in capsys.readouterr().out


def test_once_shows_everything_since_the_start(capsys, server):
    assert cli.main(["top", "--once", "--url", server(GOOD)]) == 0
    printed = capsys.readouterr().out
    for words in ("hit: host", "50.0%", "pages without a state", "1 evicted", "disk", "none"):
        assert words in printed
    assert cli.main(["top", "--once", "--json", "--url", server(GOOD)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hit_rates"]["host"] == 0.5
    assert found["disk"]["quota_bytes"] == 1000
    assert found["since"] == "start"


def test_numbers_that_json_cannot_hold_are_null(capsys, server):
    lines = "".join(
        f'vllm:hybrid_pages_{name}{{engine="9"}} +Inf\n'
        for name in ("lookup_tokens_total", "missing_state_tokens_total", "free_bytes")
    )
    assert cli.main(["top", "--once", "--json", "--url", server(GOOD + lines)]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["prompt_tokens"] is None  # infinite
    assert found["missing_state_share"] is None  # no number
    assert found["host"]["free_bytes"] is None
    assert found["hit_rates"]["host"] == 0


def test_nothing_is_lost_on_a_narrow_or_low_terminal():
    text = GOOD.replace("100000", "123456789012").replace("5.0e4", "61728394506")
    found = figures(parse(text + REMOTE), None, 0)
    console = Console(width=45, file=io.StringIO())
    console.print(view("http://localhost:8000", found, found))
    lines = console.file.getvalue().splitlines()
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    at = next(at for at, line in enumerate(lines) if line.startswith("looked up"))
    shown = [line[len("looked up") :].split() for line in lines[at : at + 2]]
    assert {"".join(pieces) for pieces in zip(*shown, strict=True)} == {"123,456,789,012"}
    # A bar that is cut would show another share.
    (host,) = [line.split()[-1] for line in lines if line.startswith("host")]
    assert host.count("\N{FULL BLOCK}") == round(0.6 * len(host))
    assert any("failures: 3 remote: deadline" in line for line in lines[:6])


def test_without_the_connector_it_says_so(capsys, server):
    assert cli.main(["top", "--once", "--url", server("vllm:other 1\n")]) == 0
    assert "no metric of hybrid-pages yet" in capsys.readouterr().out


def test_an_endpoint_that_does_not_answer_is_an_error(capsys):
    assert cli.main(["top", "--once", "--url", "http://127.0.0.1:1"]) == 2
    assert "start the engine, or name the address" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["top", "--once"], ["doctor"]])
@pytest.mark.parametrize(
    ("text", "missing", "reason"),
    [
        ("<html><body>Welcome</body></html>", 0, "expected metrics, found a text without any"),
        (GOOD, 1000, "ends 1000 bytes early"),
        ("process_cpu_seconds_total 5\n", 0, "expected vLLM's metrics, found those of another"),
    ],
)
def test_what_is_no_metrics_or_not_all_of_them_is_an_error(
    capsys, server, command, text, missing, reason
):
    assert cli.main([*command, "--url", server(text, missing=missing)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err


@pytest.mark.parametrize("command", [["top", "--once"], ["doctor"]])
def test_an_endpoint_that_never_comes_to_an_end_is_an_error(capsys, server, monkeypatch, command):
    monkeypatch.setattr("hybrid_pages.scrape._SECONDS", 0.5)
    assert cli.main([*command, "--url", server(GOOD, endless=True)]) == 2
    assert "it takes more than 0.5 s" in capsys.readouterr().err


def test_each_interval_is_an_object(server):
    words = ["top", "--json", "--interval", "0.1", "--url", server(GOOD)]
    with subprocess.Popen(
        [sys.executable, "-c", CALL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        first = json.loads(process.stdout.readline())
        server("")  # it answers no more
        while "error" not in (later := json.loads(process.stdout.readline())):
            pass
        server(GOOD)
        while "error" in (again := json.loads(process.stdout.readline())):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == b""
    assert first["since"] < 30 and first["hit_rate"] is None
    assert "found status 404" in later["error"]
    assert again["disk"]["used_bytes"] == {"this": 500}


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_is_live_on_a_terminal_and_leaves_it_as_it_was(server, ends):
    """Also over ssh, which is a terminal of this kind."""
    master, slave = pty.openpty()
    words = ["top", "--interval", "0.1", "--url", server(GOOD)]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-c", CALL, *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(slave)
        shown, deadline = b"", time.monotonic() + 60
        while shown.count(b"hit: host") < 3:
            assert time.monotonic() < deadline, shown
            shown += os.read(master, 65536)
        process.send_signal(ends)
        while True:
            try:
                more = os.read(master, 65536)
            except OSError:
                break
            if not more:
                break
            shown += more
        assert process.wait(30) == 0
    os.close(master)
    # To the other screen, and back.
    assert shown.index(b"\x1b[?1049h") < shown.rindex(b"\x1b[?1049l")
    assert shown.index(b"\x1b[?25l") < shown.rindex(b"\x1b[?25h"), "the cursor"
    assert b"50.0%" in shown and b"Traceback" not in shown
