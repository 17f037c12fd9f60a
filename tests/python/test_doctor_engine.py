"""`hybrid-pages doctor` on engines that run: a clean one has no finding."""

from __future__ import annotations

import json

import pytest

from endpoint import GOOD
from hybrid_pages import cli


def of_engine(capsys, url: str) -> list[str]:
    status = cli.main(["doctor", "--json", "--url", url])
    found = [each["name"] for each in json.loads(capsys.readouterr().out)["findings"]]
    assert status == int(bool(found))
    return found


@pytest.mark.parametrize("reason", ["drafts", "narrow_window", "layout"])
def test_an_engine_that_resumes_at_whole_blocks_only_says_why(capsys, server, reason):
    text = f'{GOOD}vllm:hybrid_pages_skipped_tails_total{{engine="0",reason="{reason}"}} 9\n'
    assert of_engine(capsys, server(text)) == ["whole-blocks"]
    assert of_engine(capsys, server(text.replace("} 9\n", "} 1\n"))) == [], "few"
    assert of_engine(capsys, server(text.replace(reason, "unknown_token"))) == [], "of a request"


def test_short_prompts_are_told_where_they_never_hit(capsys, server):
    """They are compared with the block of all groups, while vLLM tells the smallest."""
    text = GOOD.replace('block_size="784"', 'block_size="16"').replace(
        'le="1000"} 5', 'le="1000"} 9'
    )
    assert of_engine(capsys, server(text)) == []
    text += 'vllm:hybrid_pages_block_tokens{engine="0"} 1500\n'
    assert of_engine(capsys, server(text)) == []
    text += 'vllm:hybrid_pages_skipped_tails_total{engine="0",reason="drafts"} 9\n'
    assert cli.main(["doctor", "--json", "--url", server(text)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert "multiples of 1500 tokens" in finding["found"]
    assert finding["found"].endswith("90% of the prompts have at most 1000, and never hit")


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
        ('unpinned_bytes{engine="0"} 10', "unpinned"),
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
        ('disk_lasting{engine="0"} 1', 'disk_lasting{engine="0"} 0', "disk-not-lasting"),
        ('interval="0"', 'interval="4096"', "retention"),
        ('source="host"} 5.0e4', 'source="host"} 0', "no-hits"),
        ('caching="True"', 'caching="False"', "prefix-caching"),
    ],
)
def test_what_an_engine_says_of_itself_is_found(capsys, server, old, new, name):
    assert old in GOOD
    assert of_engine(capsys, server(GOOD.replace(old, new))) == [name]


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
