"""`hybrid-pages lab scale`: fleets over a remote store, against a model without the lab."""

import heapq
import json
import math
import random
from functools import partial

import pytest

from hybrid_pages import BudgetError, InvalidArgumentError, cli
from hybrid_pages.lab import Link, Trace, run_fleets
from hybrid_pages.lab.scale_report import reached
from test_replay import CONVERSATION, ROOT, request, written

BLOCK = 512
PAGE, CHECKPOINT = 3 << 20, 5 << 20
LATENCY, BANDWIDTH = 0.02, 1e9
TERMS = dict(
    policy="lru",
    ratio=1,
    host_units=1 << 20,
    pack_bytes=32 << 20,
    stale=1000,
    overlap=5000,
    list_keys=3,
)


def link(speed, **change):
    numbers = dict(
        latency=LATENCY, bandwidth=BANDWIDTH, page_bytes=PAGE, checkpoint_bytes=CHECKPOINT
    )
    return Link(**numbers | change, tokens_per_second=speed)


def conversations(seed, count=300, apart=150):
    rng = random.Random(seed)
    rows, chains = [], [[at] for at in range(3)]
    for at in range(count):
        chain = list(rng.choice(chains[-30:])[: rng.randint(1, 20)])
        chain += [1000 + at * 50 + more for more in range(rng.randint(0, 6))]
        chains.append(chain)
        tokens = len(chain) * BLOCK + rng.choice([0, 1, 300])
        rows.append(request(at * apart + rng.randint(0, 99), chain, tokens))
    return sorted(rows, key=lambda row: row["timestamp"])


def speed_of(rows, engines):
    """Tokens a second at which one copy of the trace is work for so many engines."""
    lasts = rows[-1]["timestamp"] - rows[0]["timestamp"]
    return sum(row["input_length"] for row in rows) * 1000 / lasts / engines


class Store:
    """Packs as the document describes them, one event after another."""

    def __init__(self, retention):
        self.retention, self.at = retention, {}
        self.open, self.due, self.sent, self.there = {}, [], [], []
        self.load = {}
        self.looked, self.listed, self.whole = {}, {}, {}

    def count(self, now, **what):
        second = self.load.setdefault(now // 1000, {})
        for name, number in what.items():
            second[name] = second.get(name, 0) + number

    def send(self, engine, now):
        pack = self.open.pop(engine)
        size = sum(PAGE if kind == 0 else CHECKPOINT for kind, _ in pack["entries"])
        size += 128 + 56 * len(pack["entries"])
        pack["ready"] = now + math.ceil((LATENCY + size / BANDWIDTH) * 1000)
        self.sent.append(pack)
        self.count(now, puts=1, up=size)

    def advance(self, now):
        while self.due and self.due[0][0] <= now:
            due, _, engine, pack = heapq.heappop(self.due)
            if self.open.get(engine) is pack:
                self.send(engine, due)

    def look(self, engine, now):
        if engine in self.looked and now - self.looked[engine] < 1000:
            return
        known = self.listed.setdefault(engine, set())
        new = [at for at, pack in enumerate(self.sent) if pack["ready"] <= now and at not in known]
        known.update(new)
        others = [self.sent[at] for at in new if self.sent[at]["engine"] != engine]
        before, self.looked[engine] = self.looked.get(engine), now
        rows = sum(len(pack["entries"]) for pack in others)
        live = [pack for pack in self.sent if pack["ready"] <= now and not self.gone(pack, now)]
        if before is not None and now - self.whole[engine] < 600_000:
            keys = sum(pack["ready"] > before - 5000 for pack in live)
        else:
            self.whole[engine], keys = now, len(live)
        size = 128 * len(others) + 56 * rows
        self.count(now, looks=1, lists=1 + keys // 3, tables=len(others), table_bytes=size)

    def find(self, engine, entry, now):
        pack, _ = self.at.get(entry, (None, 0))
        if pack is None or "ready" not in pack or self.gone(pack, now):
            return False
        own = pack["engine"] == engine
        return pack["ready"] <= (now if own else self.looked.get(engine, 0))

    def gone(self, pack, now):
        return self.retention and "ready" in pack and now >= pack["ready"] + self.retention

    def put(self, engine, entry, now):
        pack, _ = self.at.get(entry, (None, 0))
        if pack is not None and not self.gone(pack, now):
            if pack["engine"] == engine or self.find(engine, entry, now):
                return
            pack = "another's"
        if engine not in self.open:
            mine = self.open[engine] = {"engine": engine, "entries": []}
            heapq.heappush(self.due, (now + 400, len(self.due) + 1e9 * now, engine, mine))
        mine = self.open[engine]
        if pack is None or pack != "another's":
            self.at[entry] = (mine, len(mine["entries"]))
        mine["entries"].append(entry)
        if sum(PAGE if kind == 0 else CHECKPOINT for kind, _ in mine["entries"]) >= 32 << 20:
            self.send(engine, now)

    def get(self, entries, now):
        places = sorted((id(self.at[one][0]), self.at[one][1], one) for one in entries)
        gets, run, before = 0, 0, None
        for pack, place, (kind, _) in places:
            size = PAGE if kind == 0 else CHECKPOINT
            if before == (pack, place - 1) and run + size <= 8 << 20:
                run += size
            else:
                gets, run = gets + 1, size
            before = (pack, place)
        self.count(now, gets=gets, down=sum(PAGE if one[0] == 0 else CHECKPOINT for one in entries))


def by_hand(rows, engines, admit, speed, retention=None):
    """Engines in turn, whose hosts keep everything, with a checkpoint at every boundary."""
    store = Store(retention)
    host = [set() for _ in range(engines)]
    passed = [set() for _ in range(engines)]
    start = rows[0]["timestamp"]
    lasts = rows[-1]["timestamp"] - start
    half, end = math.ceil(lasts // 2 / 1000) * 1000, lasts // 1000 * 1000
    out = dict(requests=0, hit=0, fetched=0, slow=0, saved=0.0)
    for turn, row in enumerate(rows):
        engine, now, tokens = turn % engines, row["timestamp"] - start, row["input_length"]
        if now >= end:
            break
        chain = [tuple(row["hash_ids"][: at + 1]) for at in range(tokens // BLOCK)]
        limit = min((tokens - 1) // BLOCK, len(chain))
        mine = host[engine]
        pages = 0
        while pages < limit and (0, chain[pages]) in mine:
            pages += 1
        alone = max([at + 1 for at in range(pages) if (1, chain[at]) in mine], default=0)
        resumed, counted = alone, half <= now < end
        if admit and chain:
            store.advance(now)
            store.look(engine, now)
            deep = pages
            while deep < limit and store.find(engine, (0, chain[deep]), now):
                deep += 1
            best = max(
                (at + 1 for at in range(alone, deep) if store.find(engine, (1, chain[at]), now)),
                default=0,
            )
            if best:
                wanted = [(0, key) for key in chain[min(pages, best) : best]] + [
                    (1, chain[best - 1])
                ]
                size = sum(PAGE if kind == 0 else CHECKPOINT for kind, _ in wanted)
                gained = (best - alone) * BLOCK
                saved = gained / speed - LATENCY - size / BANDWIDTH
                if saved <= 0 and counted:
                    out["slow"] += gained
                if saved > 0 or admit == "all":
                    store.get(wanted, now)
                    mine.update(wanted)
                    resumed = best
                    if counted:
                        out["fetched"] += gained
                        out["saved"] += saved
        seen = resumed
        while seen < len(chain) and chain[seen] in passed[engine]:
            seen += 1
        seen = max(resumed, min(seen, (tokens - 1) // BLOCK))
        published = []
        for at in range(resumed, len(chain)):
            published += [one for one in ((0, chain[at]), (1, chain[at])) if one not in mine]
        mine.update(published)
        passed[engine].update(chain)
        if admit == "all":
            offered = published
        elif admit == "auto":
            offered = [(0, key) for key in chain[:resumed]]
            offered += [(1, chain[resumed - 1])] if resumed else []
            offered += [one for one in published if len(one[1]) <= seen]
        else:
            offered = []
        for one in offered:
            store.put(engine, one, now)
        if counted:
            out["requests"] += 1
            out["hit"] += resumed * BLOCK
    store.advance(end)
    out |= dict.fromkeys(
        ("looks", "lists", "tables", "table_bytes", "gets", "down", "puts", "up"), 0
    )
    for second in range(half // 1000, end // 1000):
        for name, number in store.load.get(second, {}).items():
            out[name] += number
    live = [pack for pack in store.sent if pack["ready"] <= end and not store.gone(pack, end)]
    out["packs"], out["entries"] = len(live), sum(len(pack["entries"]) for pack in live)
    return out


def counted(row):
    rate = partial(lambda value: round(value * row.seconds))
    found = dict(
        requests=row.requests,
        hit=row.hit_tokens,
        fetched=row.remote_hit_tokens,
        slow=row.remote_slow_tokens,
        saved=row.saved_seconds,
        packs=row.packs,
        entries=row.entries,
    )
    load = dict(
        looks=rate(row.load.looks),
        lists=rate(row.load.lists),
        tables=rate(row.load.table_gets),
        table_bytes=rate(row.load.table_bytes),
        gets=rate(row.load.data_gets),
        down=rate(row.load.down_bytes),
        puts=rate(row.load.puts),
        up=rate(row.load.up_bytes),
    )
    return found | load


@pytest.mark.parametrize("retention", [None, 8000])
@pytest.mark.parametrize("admit", ["all", "auto", None])
@pytest.mark.parametrize("engines", [1, 4])
def test_a_fleet_does_what_a_model_counts(tmp_path, engines, admit, retention):
    rows = conversations(seed=engines)
    trace = Trace.open(written(tmp_path / "trace.jsonl", rows))
    speed = speed_of(rows, engines)
    fleets = [(engines, "round-robin", admit)]
    (row,) = run_fleets(trace, fleets, link=link(speed), share=False, retention=retention, **TERMS)
    assert row.copies == pytest.approx(1)
    assert counted(row) == pytest.approx(by_hand(rows, engines, admit, speed, retention), rel=1e-9)


def test_a_model_that_reads_its_own_tables_is_found_out(tmp_path):
    rows = conversations(seed=4)
    trace = Trace.open(written(tmp_path / "trace.jsonl", rows))
    speed = speed_of(rows, 4)
    (row,) = run_fleets(trace, [(4, "round-robin", "all")], link=link(speed), share=False, **TERMS)
    found, wrong = counted(row), by_hand(rows, 4, "all", speed)
    wrong["tables"] = row.packs * 4
    assert found != pytest.approx(wrong, rel=1e-9)


def test_events_bring_requests_to_their_prefix_and_a_store_brings_it_to_all(tmp_path):
    rows = conversations(seed=5, count=600)
    trace = Trace.open(written(tmp_path / "trace.jsonl", rows))
    ways = [(8, route, admit) for route in ("events", "round-robin") for admit in (None, "all")]
    found = run_fleets(trace, ways, link=link(speed_of(rows, 8)), **TERMS)
    assert [(row.engines, row.route, row.admit) for row in found] == ways
    rates = {(row.route, row.admit): row.hit_rate for row in found}
    assert rates["events", None] > rates["round-robin", None]
    assert rates["round-robin", "all"] > rates["round-robin", None]
    assert all(row.imbalance >= 1 for row in found)


def test_shared_blocks_are_found_in_every_copy(tmp_path):
    """Prompts of one template and a block of their own: more than one copy has the template."""
    rows = [request(at * 500, [1, 2, 1000 + at]) for at in range(60)]
    trace = Trace.open(written(tmp_path / "trace.jsonl", rows))
    terms = dict(link=link(speed_of(rows, 2)), **TERMS)
    both = [
        run_fleets(trace, [(8, "round-robin", "all")], share=on, **terms) for on in (True, False)
    ]
    (shared,), (separate,) = both
    assert shared.copies == pytest.approx(4)
    assert shared.hit_rate >= separate.hit_rate
    assert shared.entries < separate.entries


def test_traffic_grows_with_the_engines(tmp_path):
    rows = conversations(seed=6)
    trace = Trace.open(written(tmp_path / "trace.jsonl", rows))
    speed = speed_of(rows, 4)
    fleets = [(engines, "round-robin", None) for engines in (1, 2, 4, 8)]
    found = run_fleets(trace, fleets, link=link(speed), **TERMS)
    per_engine = [row.input_tokens / row.engines / row.seconds for row in found]
    assert [row.copies for row in found] == pytest.approx([0.25, 0.5, 1, 2])
    assert all(0.6 * speed < rate < 1.5 * speed for rate in per_engine)


def scale(capsys, *words):
    assert cli.main(["lab", "scale", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def trace(tmp_path):
    return written(tmp_path / "trace.jsonl", conversations(seed=7))


SMALL = ("--engines", "1,4", "--host", "4GiB", "--compute", "2000")


def test_a_json_object_for_each_fleet(capsys, trace):
    printed = scale(capsys, trace, *SMALL, "--json")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [(row["route"], row["admit"], row["engines"]) for row in rows] == [
        (route, admit, engines)
        for route in ("events", "round-robin")
        for admit in ("off", "auto", "all")
        for engines in (1, 4)
    ]
    for row in rows:
        assert (row["per_second"]["puts"] > 0) == (row["admit"] != "off")
        assert row["most_in_a_second"]["puts"] >= row["per_second"]["puts"]
        assert row["hit_rate"] == row["hit_tokens"] / row["input_tokens"]


def test_the_table_names_the_limits_and_what_is_assumed(capsys, trace):
    printed = scale(capsys, trace, *SMALL, "--route", "events", "--admit", "off,all")
    lines = printed.splitlines()
    assert "events, off" in lines and "events, all" in lines
    assert "assumed: 64.0 KiB per token (--model, --token-bytes)" in lines
    assert sum(line.startswith("beyond a limit: ") for line in lines) == 1
    assert "3,500 PUT/s and 5,500 GET/s of one prefix (Amazon S3)" in printed


def test_objects_that_are_deleted_take_no_room(capsys, trace):
    words = [trace, *SMALL, "--route", "events", "--admit", "all", "--json"]
    kept, deleted = (
        json.loads(scale(capsys, *words, *more).splitlines()[1])
        for more in ([], ["--retention", "5s"])
    )
    assert deleted["stored_bytes"] < kept["stored_bytes"] / 2
    assert deleted["hit_rate"] <= kept["hit_rate"]


def test_only_the_first_part_of_a_trace(capsys, trace):
    words = [trace, *SMALL, "--admit", "off", "--route", "load", "--json", "--lasts"]
    assert json.loads(scale(capsys, *words, "20s").splitlines()[0])["seconds"] == pytest.approx(
        10, abs=1
    )
    assert cli.main(["lab", "scale", *map(str, words), "1s"]) == 2
    assert "expected requests over at least 3 seconds" in capsys.readouterr().err


def test_a_picture_is_drawn(capsys, tmp_path, trace):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / "picture.png"
    scale(capsys, trace, *SMALL, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_where_a_limit_is_reached_lies_between_rows():
    class Row:
        def __init__(self, engines, need):
            self.engines, self.need = engines, need

    need = lambda row: row.need  # noqa: E731
    rows = [Row(1, 0.0), Row(10, 100.0), Row(100, 10_000.0)]
    # It grows with the square: 5,500 is 7.4 times the root of 100.
    assert reached(rows, 5_500, need) == round(10 * math.sqrt(55))
    assert reached(rows, 50, need) == 10
    assert reached(rows, 1e6, need) == 0


def refusal(capsys, *words):
    try:
        status = cli.main(["lab", "scale", *map(str, words)])
    except SystemExit as exit_:
        status = exit_.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--engines", "0"], "expected a whole number from 1 to 10000"),
        (["--engines", "1,,2"], "expected a whole number"),
        (["--route", "best"], "expected some of round-robin"),
        (["--admit", "none"], "expected some of off, auto, all"),
        (["--host", "5%"], "expected one size such as 64GiB"),
        (["--host", "96MiB"], "expected room for a page and a checkpoint"),
        (["--pack", "0MiB"], "sizes above 0"),
        (["--retention", "0s"], "above 0 such as 10min"),
        (["--retention", "1.5h"], "above 0 such as 10min"),
        (["--remote", "fast"], "such as 20ms,1GB/s"),
        (["--list-keys", "0"], "expected a whole number from 1"),
        (["--ratio", "2", "--model", "."], "not allowed with"),
        (["--token-bytes", "1", "--model", "."], "the model says"),
        (["--plot", "picture.jpeg"], ".png"),
    ],
)
def test_what_cannot_be_simulated_is_refused(capsys, trace, words, reason):
    assert reason in refusal(capsys, trace, *words)


@pytest.mark.parametrize(
    ("fleet", "change", "error"),
    [
        ((0, "events", None), {}, InvalidArgumentError),
        ((1, "best", None), {}, InvalidArgumentError),
        ((1, "events", "off"), {}, InvalidArgumentError),
        ((1, "events", None), {"ratio": 0}, InvalidArgumentError),
        ((1, "events", None), {"pack_bytes": 0}, InvalidArgumentError),
        ((1, "events", None), {"list_keys": 0}, InvalidArgumentError),
        ((1, "events", None), {"policy": "bound"}, InvalidArgumentError),
        ((1, "events", None), {"host_units": 1}, BudgetError),
        ((1 << 40, "events", None), {}, InvalidArgumentError),
    ],
)
def test_a_number_or_name_out_of_range_is_refused(trace, fleet, change, error):
    with pytest.raises(error):
        run_fleets(Trace.open(trace), [fleet], link=link(7000.0), **TERMS | change)


def test_an_error_where_progress_is_shown_ends_the_simulation(trace):
    def show(ran, expected):
        raise RuntimeError(f"{ran} of {expected}")

    with pytest.raises(RuntimeError, match="of"):
        run_fleets(Trace.open(trace), [(4, "load", None)], link=link(7000.0), done=show, **TERMS)


@pytest.mark.long
def test_the_published_rows_are_what_the_command_prints(capsys):
    """Those of 10 engines on the conversation trace."""
    words = ["--lasts", "20min", "--engines", "10", "--json"]
    rows = [json.loads(line) for line in scale(capsys, CONVERSATION, *words).splitlines()]
    text = (ROOT / "docs" / "scale.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    (rates,) = [line[2:] for line in lines if line[1:2] == ["10"] and len(line) == 8][:1]
    assert [float(rate) for rate in rates] == pytest.approx(
        [row["hit_rate"] for row in rows], abs=0.02
    )
    by_use = {row["admit"]: row for row in rows if row["route"] == "events"}
    loads = [line for line in lines if line[:1] in (["conversation"], [""]) and len(line) == 11]
    for use in ("auto", "all"):
        at = next(at for at, line in enumerate(loads) if line[1] == use)
        assert loads[at][2] == "10"
        load = by_use[use]["per_second"]
        names = ("puts", "data_gets", "table_gets", "lists")
        shown = [float(cell.replace(",", "")) for cell in loads[at][5:9]]
        assert shown == pytest.approx([load[name] for name in names], rel=0.1, abs=1)
