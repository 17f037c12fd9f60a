"""`hybrid-pages verify --url`: how it ends, what it leaves in files, and in which time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from checked_server import WAITING
from hybrid_pages import cli
from hybrid_pages.scrape import parse
from hybrid_pages.verify import output, serving_runs

# ---- metrics


def test_a_difference_stays_in_the_metrics(served, tmp_path):
    path = tmp_path / "verify.prom"
    assert served.run("--metrics", str(path))[0] == 0
    served.spoiled, served.lags = {"host"}, {}
    status, found = served.run("--metrics", str(path))
    assert status == 1 and found["problems"][0].startswith("host: 4 of 4 answers differ")
    assert not served.known
    served.key = "secret"
    assert served.run("--metrics", str(path))[0] == 2  # it could not tell
    metrics = parse(path.read_text())
    assert metrics.sum("hybrid_pages_verify_status", url=served.url, model="m") == 2
    assert len(metrics.all("hybrid_pages_verify_status")) == 1
    when = [
        metrics.sum(f"hybrid_pages_verify_{what}_timestamp_seconds")
        for what in ("equal", "different", "run")
    ]
    assert 0 < when[0] < when[1] < when[2]
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []


def alarm(path: Path, model: str) -> bool:
    """Whether the last run that could tell found a difference, as the alert rule has it."""
    metrics = parse(path.read_text())
    different, equal = (
        metrics.sum(f"hybrid_pages_verify_{what}_timestamp_seconds", model=model)
        for what in ("different", "equal")
    )
    return different > equal


def test_a_good_run_of_an_adapter_leaves_the_alarm_of_its_model(served, tmp_path):
    path, words = tmp_path / "verify.prom", ("--metrics", str(tmp_path / "verify.prom"))
    served.spoiled = {"host"}
    assert served.run(*words)[0] == 1
    before = path.read_text().splitlines()
    served.spoiled = set()
    assert served.run("lora", *words)[0] == 0
    assert alarm(path, "m") and not alarm(path, "lora")
    of_model = [line for line in before if 'model="m"' in line]
    assert of_model and set(of_model) < set(path.read_text().splitlines())
    assert served.run(*words)[0] == 0
    assert not alarm(path, "m")


def test_what_no_server_told_counts_for_every_model_of_the_address(served, tmp_path):
    path, words = tmp_path / "verify.prom", ("--metrics", str(tmp_path / "verify.prom"))

    def statuses() -> dict[str, float]:
        samples = parse(path.read_text()).all("hybrid_pages_verify_status")
        return {sample.labels["model"]: sample.value for sample in samples}

    served.key = "secret"
    assert served.run(*words)[0] == 2
    assert statuses() == {"": 2}
    served.key = ""
    assert served.run(*words)[0] == served.run("lora", *words)[0] == 0
    assert statuses() == {"m": 0, "lora": 0}
    served.key = "secret"
    assert served.run(*words)[0] == 2
    assert statuses() == {"m": 2, "lora": 2}


def test_a_failed_load_is_no_difference(served, tmp_path):
    """What it would have brought was computed again, so the answer is right."""
    path = tmp_path / "verify.prom"
    served.failed = "checksum"
    status, found = served.run("--metrics", str(path))
    assert status == 1 and found["failed_loads"]
    metrics = parse(path.read_text())
    assert not metrics.all("hybrid_pages_verify_different_timestamp_seconds")
    assert metrics.sum("hybrid_pages_verify_failed_load_timestamp_seconds") > 0
    served.failed = ""
    assert served.run("--metrics", str(path))[0] == 0
    metrics = parse(path.read_text())
    failed, equal = (
        metrics.sum(f"hybrid_pages_verify_{what}_timestamp_seconds")
        for what in ("failed_load", "equal")
    )
    assert 0 < failed < equal


# ---- files


@pytest.mark.parametrize(("spoiled", "status"), [({"host"}, 1), (set(), 2)])
def test_metrics_that_cannot_be_written_hide_no_difference(
    served, tmp_path, capsys, spoiled, status
):
    """The name of the draft beside the file is too long."""
    served.spoiled = spoiled
    found = served.run("--metrics", str(tmp_path / ("m" * 250)))
    assert found[0] == status and found[1]["good"] == (not spoiled) and found[1]["prompts"]
    printed = capsys.readouterr()
    assert "File name too long" in printed.err
    assert ("NOT VERIFIED" if spoiled else "Verified") in printed.out


def test_metrics_in_a_directory_that_cannot_be_written_are_rejected_first(
    served, tmp_path, capsys, monkeypatch
):
    """A new file takes the place of the old one, so that one may be written is not enough."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "verify.prom").write_text("")
    real = os.access
    monkeypatch.setattr(output.os, "access", lambda path, how: path != folder and real(path, how))
    assert served.run("--metrics", str(folder / "verify.prom"))[0] == 2
    assert "expected a file in a directory that can be written" in capsys.readouterr().err
    assert not served.bodies


def test_a_run_without_a_report_leaves_none_of_a_run_before(served, tmp_path, monkeypatch):
    report, text = tmp_path / "report.json", tmp_path / "report.md"
    assert served.run("--markdown", str(text))[1]["status"] == 0
    served.key = "secret"
    status, found = served.run("--markdown", str(text))
    assert status == found["status"] == 2 and set(found) == {"good", "status", "error"}
    assert not found["good"] and "set VLLM_API_KEY" in found["error"]
    assert "**NOT VERIFIED.**" in text.read_text() and found["error"] in text.read_text()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    served.key = ""
    monkeypatch.setattr(serving_runs.ServingRuns, "collect", interrupted)
    assert served.run()[0] == 130
    assert json.loads(report.read_text())["error"] == "interrupted"


def test_two_runs_at_once_and_a_long_queue_compare_nothing(served, tmp_path, capsys, monkeypatch):
    served.run()
    (lock,) = tmp_path.glob("hybrid-pages-verify-*.lock")
    metrics = tmp_path / "verify.prom"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, found = served.run("--metrics", str(metrics))
        assert (status, found["good"], found["status"]) == (3, False, 3)
    assert "another run of verify" in capsys.readouterr().err
    monkeypatch.setattr(serving_runs, "_CALM_SECONDS", 0.0)
    served.metrics[WAITING] = 3.0
    count = len(served.bodies)
    status, found = served.run("--metrics", str(metrics))
    assert status == found["status"] == 3
    assert "expected a moment without requests that wait" in capsys.readouterr().err
    assert len(served.bodies) == count and not metrics.exists()


def test_no_server_and_no_place_for_a_report(served, capsys, tmp_path):
    assert cli.main(["verify", "--url", "ftp://127.0.0.1"]) == 2
    assert "begins with http://" in capsys.readouterr().err
    assert served.run("--metrics", str(tmp_path / "no" / "verify.prom"))[0] == 2
    assert "--metrics: expected a directory" in capsys.readouterr().err
    path = str(tmp_path / "no" / "report.json")
    assert cli.main(["verify", "--url", served.url, "--json", path]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--json: expected a directory" in line


# ---- time


def test_it_ends_in_time_and_drops_what_it_has(served, capsys, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(serving_runs.time, "monotonic", lambda: 0.2 * next(clock))
    assert served.run("--timeout", "60")[0] == 2
    assert "expected all answers within 60 s (--timeout)" in capsys.readouterr().err
    assert served.bodies and not served.known


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


def never(client: socket.socket) -> None:
    """Says nothing."""
    client.recv(1)


def trickles_headers(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        client.sendall(b"x")
        Event().wait(0.05)


def trickles_a_body(client: socket.socket) -> None:
    client.sendall(HEAD + b'{"data": ')
    while True:
        client.sendall(b" ")
        Event().wait(0.05)


@contextmanager
def talking(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that takes connections and talks in a way of its own; its address."""
    left: list[socket.socket] = []

    def to(client: socket.socket) -> None:
        with suppress(OSError):
            client.recv(1 << 16)
            talk(client)

    def take(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                left.append(client)
                Thread(target=to, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=take, args=(listener,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for client in left:
                client.close()


@pytest.mark.parametrize("talk", [never, trickles_headers, trickles_a_body])
def test_a_server_that_does_not_come_to_an_end_is_cut_off(served, capsys, talk):
    """Each piece comes in time. Without a limit on all of them this would not end."""
    with talking(talk) as address:
        assert cli.main(["verify", "--url", address, "--timeout", "0.3"]) == 2
    assert "expected all answers within 0.3 s (--timeout), found 0" in capsys.readouterr().err


def test_a_tokenizer_that_never_answers_is_cut_off(served, capsys):
    def models_alone(client: socket.socket) -> None:
        client.sendall(HEAD + b'{"data": [{"id": "m"}]}')
        client.shutdown(socket.SHUT_WR)

    first = iter([models_alone])
    with talking(lambda client: next(first, never)(client)) as address:
        assert cli.main(["verify", "--url", address, "--timeout", "0.5"]) == 2
    assert "expected all answers within 0.5 s (--timeout)" in capsys.readouterr().err
