"""The dashboard and the alert rules: every metric in them is ours, and real tools load them.

Every expression is parsed by promql-parser. `promtool` and `prometheus` are looked for on the PATH
(Debian's package `prometheus` has both), and grafana-foundation-sdk, which is made of Grafana's own
schema, among the packages; without them those tests are skipped.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from hybrid_pages.verify.result_metrics import METRICS, PREFIX

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
VARIABLES = {"$__rate_interval": "1m", "$model": ".*", "$engine": ".*"}


def metrics(name: str) -> dict[str, Any]:
    """A table of the connector's metrics, which can't be imported without vLLM."""
    source = (ROOT / "python/hybrid_pages/vllm/metrics.py").read_text()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == name:
            return ast.literal_eval(statement.value)
    raise AssertionError(name)


COUNTERS, GAUGES = metrics("COUNTERS"), metrics("GAUGES")
EXPOSED = {f"{name}_total": label for name, (label, _) in COUNTERS.items()} | {
    name: label for name, (label, _) in GAUGES.items()
}


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def filled(query: str) -> str:
    """A query of the dashboard with values for its variables."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


def test_every_expression_is_promql():
    promql = pytest.importorskip("promql_parser")
    expressions = [rule["expr"] for rule in RULES] + [filled(query) for query in queries()]
    for expression in expressions:
        promql.parse(expression)
        with pytest.raises(ValueError):
            promql.parse(f"{expression})")


@pytest.mark.parametrize("name", ["monitoring/alerts.yml", "monitoring/alerts_test.yml"])
def test_every_metric_of_verify_that_is_named_exists(name):
    named = set(re.findall(rf"{PREFIX}(\w+)", (ROOT / name).read_text()))
    assert named and named <= set(METRICS)


def test_the_document_names_all_metrics_of_verify():
    text = (ROOT / "docs/verify.md").read_text()
    assert set(re.findall(rf"{PREFIX}(\w+)", text)) == set(METRICS)


def test_the_document_counts_the_rules():
    words = ("thirteen", "fourteen", "fifteen", "sixteen")
    assert f"{words[len(RULES) - 13]} alert rules" in (ROOT / "docs/operations.md").read_text()


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml", "alerts_test.yml"])
def test_every_metric_that_is_named_exists(name):
    text = (FOLDER / name).read_text()
    named = set(re.findall(r"vllm:hybrid_pages_(\w+)", text))
    assert named and named <= set(EXPOSED)


def test_labels_are_those_of_the_metric():
    for query in queries():
        for by, metric in re.findall(r"by \((\w+)\) \((?:rate\()?vllm:hybrid_pages_(\w+)", query):
            assert EXPOSED[metric] == by, query


def test_no_panel_lies_over_another():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    for a, b in itertools.combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (a, b)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert all(panel["description"] for panel in DASHBOARD["panels"])


def test_grafanas_schema_takes_the_dashboard():
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    dashboard = models.Dashboard.from_json(DASHBOARD)
    again = json.loads(encoder.JSONEncoder().encode(dashboard))
    assert [panel["title"] for panel in again["panels"]] == [
        panel["title"] for panel in DASHBOARD["panels"]
    ]
    assert [it["name"] for it in again["templating"]["list"]] == ["datasource", "model", "engine"]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the PATH")
    return found


@pytest.mark.parametrize(
    "words", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]]
)
def test_promtool_takes_the_rules(words):
    done = subprocess.run(
        [tool("promtool"), *words], cwd=FOLDER, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_threshold_is_found(tmp_path):
    for name in ("alerts.yml", "alerts_test.yml"):
        text = (FOLDER / name).read_text()
        (tmp_path / name).write_text(text.replace("> 0.2 *", "> 0.4 *"))
    done = subprocess.run(
        [tool("promtool"), "test", "rules", "alerts_test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "HybridPagesMissingStates" in done.stdout + done.stderr


LABELLED = {"event": ("written", "read", "unproven", "declined")}
"""Values of labels that queries name."""


def samples(round_: int) -> str:
    """What an engine exposes: every metric, with a value that grows."""
    lines = []
    for name, label in EXPOSED.items():
        for value in LABELLED.get(label, ("one",)):
            labels = 'model_name="m",engine="0"' + (f',{label}="{value}"' if label else "")
            lines.append(f"vllm:hybrid_pages_{name}{{{labels}}} {10 * round_ + 1}")
    return "\n".join(lines) + "\n"


def test_every_figure_of_the_remote_store_is_on_the_dashboard():
    shown = set(re.findall(r"vllm:hybrid_pages_(remote_\w+)", " ".join(queries())))
    left_out = {"remote_known_packs"}
    assert shown == {name for name in EXPOSED if name.startswith("remote_")} - left_out


class Exposed(BaseHTTPRequestHandler):
    rounds = itertools.count(1)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(samples(next(self.rounds)).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus that scrapes such an engine and has the rules; its address."""
    binary = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    engine = HTTPServer(("127.0.0.1", 0), Exposed)
    Thread(target=engine.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{FOLDER / 'alerts.yml'}']\n"
        "scrape_configs:\n"
        "  - job_name: vllm\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{engine.server_port}']}}]\n"
    )
    server = subprocess.Popen(
        [
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while not answers(address):
            assert time.monotonic() < deadline, "Prometheus has no rate after 60 s"
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)
        engine.shutdown()
        engine.server_close()


def asked(address: str, query: str) -> list[Any]:
    words = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{address}/api/v1/query?{words}", timeout=10) as reply:
        return json.loads(reply.read())["data"]["result"]


def answers(address: str) -> bool:
    try:
        return bool(asked(address, "rate(vllm:hybrid_pages_lookups_total[1m])"))
    except OSError:
        return False


@pytest.mark.parametrize("query", queries())
def test_every_query_of_the_dashboard_has_an_answer(prometheus, query):
    assert asked(prometheus, filled(query)), query


def test_prometheus_loads_the_rules(prometheus):
    with urllib.request.urlopen(f"{prometheus}/api/v1/rules", timeout=10) as reply:
        (group,) = json.loads(reply.read())["data"]["groups"]
    assert len(group["rules"]) == len(RULES)
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
