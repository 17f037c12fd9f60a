"""`hybrid-pages lab route`: events bring requests to where their prefix is."""

import json

import pytest

from hybrid_pages import BudgetError, InvalidArgumentError, cli
from hybrid_pages.lab import ROUTES, Trace, route_trace
from test_replay import CONVERSATION, REQUESTS, ROOT, request, written

SHARES = ("1%", "5%", "10%", "20%")


@pytest.fixture
def trace(tmp_path):
    return written(tmp_path / "trace.jsonl", REQUESTS)


def routed(capsys, *words):
    assert cli.main(["lab", "route", "--json", *map(str, words)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("engines", [2, 8])
def test_the_published_table_is_what_the_command_prints(capsys, engines):
    rows = routed(capsys, CONVERSATION, "--engines", engines, "--budget", "5%")
    rates = {row["route"]: row["hit_rate"] for row in rows}
    below = (ROOT / "docs" / "routing.md").read_text().partition(f"{engines} engines, reuse\n")[2]
    table = [line.split() for line in below.splitlines()[: 1 + len(ROUTES)]]
    assert table[0] == ["hit", "rate", *SHARES]
    shown = {name: float(cells[SHARES.index("5%")]) for name, *cells in table[1:]}
    assert list(shown) == list(ROUTES)
    assert shown == {name: pytest.approx(rate, abs=0.02) for name, rate in rates.items()}
    assert rates["events"] > 1.2 * rates["round-robin"]
    predicted = {row["route"]: row["predicted_tokens"] / row["hit_tokens"] for row in rows}
    assert 1 <= predicted["events"] < 1.05 < predicted["sent"]
    assert all(row["imbalance"] < 1.1 for row in rows)


def test_events_find_the_engine_that_still_has_a_prefix(tmp_path):
    # Three prompts of two blocks in turn, two engines with room for two: in turn, each comes to the
    # other engine the next time, and who goes by what was sent never learns what was evicted.
    requests = [request(at * 1000, [at % 3 * 2, at % 3 * 2 + 1], 1100) for at in range(30)]
    trace = Trace.open(written(tmp_path / "trace.jsonl", requests))
    rows = {
        route: route_trace(trace, route=route, engines=2, policy="align-lru", ratio=1, fraction=1.0)
        for route in ROUTES
    }
    assert rows["round-robin"].hit_tokens == 0
    assert rows["events"].hit_tokens >= rows["sent"].hit_tokens > 0
    assert rows["events"].predicted_tokens == rows["events"].hit_tokens


def test_the_table_has_a_row_for_each_route(capsys, trace):
    assert cli.main(["lab", "route", str(trace), "--engines", "1", "--budget", "50%,100%"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 engine, reuse"
    assert lines[1].split() == ["hit", "rate", "50%", "100%"]
    assert [line.split()[0] for line in lines[2:6]] == list(ROUTES)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--engines", "0"], "expected a whole number from 1"),
        (["--policy", "bound"], "invalid choice"),
        (["--budget", "64GiB"], "expected shares"),
        (["--budget", "10%"], "one entry of each class"),
    ],
)
def test_what_cannot_be_routed_is_refused(capsys, trace, words, reason):
    try:
        status = cli.main(["lab", "route", str(trace), *words])
    except SystemExit as exit_:
        status = exit_.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert reason in printed.err


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"route": "best"}, InvalidArgumentError),
        ({"policy": "bound"}, InvalidArgumentError),
        ({"engines": 0}, InvalidArgumentError),
        ({"ratio": 0}, InvalidArgumentError),
        ({"fraction": -1.0}, InvalidArgumentError),
        ({"fraction": 0.1}, BudgetError),
    ],
)
def test_a_number_or_name_out_of_range_is_refused(trace, change, error):
    words = {"route": "events", "engines": 2, "policy": "reuse", "ratio": 3, "fraction": 1.0}
    with pytest.raises(error):
        route_trace(Trace.open(trace), **words | change)
