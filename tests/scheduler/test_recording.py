"""Recordings of live engines: what is in them, what is not, what a full disk does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybrid_pages._core import Trace, replay_traces
from hybrid_pages.vllm.config.settings import SettingsError
from hybrid_pages.vllm.scheduler.requests import recording
from simulation.engine import Engine, StartEngine, connector
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_checkpoints import counters


def lines(directory: Path) -> list[dict[str, Any]]:
    """The one recording in a directory."""
    (path,) = directory.iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_requests_are_written_at_their_ends(start: StartEngine, tmp_path: Path) -> None:
    engine = start(extra={"trace_dir": str(tmp_path / "new")}, match_unit=4)
    shared = tokens(3 * N)
    engine.generate(shared + tokens(N + 2, 1), max_tokens=5)
    engine.generate(shared + tokens(5, 2), max_tokens=2)
    engine.abort(engine.add(tokens(N - 1)))
    engine.run()
    header, first, second = lines(tmp_path / "new")
    assert header == {"format": "hybrid-pages-trace", "version": 1, "block_tokens": N}
    assert (first["input_length"], first["output_length"]) == (4 * N + 2, 5)
    assert (second["input_length"], second["output_length"]) == (3 * N + 5, 2)
    assert 0 <= first["timestamp"] <= second["timestamp"]
    assert len(first["hash_ids"]) == 4
    assert first["hash_ids"][:3] == second["hash_ids"]
    assert len(set(first["hash_ids"])) == 4


def test_hints_are_written(start: StartEngine, tmp_path: Path) -> None:
    engine = start(extra={"trace_dir": str(tmp_path)})
    engine.generate(tokens(N), hints={"session": "a", "expect_in": 30, "store": False})
    engine.generate(tokens(N), hints={"session": "a", "release": True, "retain": 5})
    _, first, second = lines(tmp_path)
    assert (first["expect_in"], first["store"], "release" in first) == (30, False, False)
    assert (second["release"], second["retain"], "expect_in" in second) == (True, 5, False)
    assert first["session"] == second["session"] != "a"
    assert Trace.open(next(tmp_path.iterdir())).requests == 2


def test_a_request_that_was_scheduled_and_aborted_is_written(
    start: StartEngine, tmp_path: Path
) -> None:
    engine = start(extra={"trace_dir": str(tmp_path)})
    result = engine.add(tokens(3 * N + 1), max_tokens=50)
    for _ in range(3):
        engine.step()
    engine.abort(result)
    engine.run()
    assert len(lines(tmp_path)) == 2


def test_hashes_of_two_recordings_cannot_be_compared(start: StartEngine, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        engine = start(extra={"trace_dir": str(tmp_path / name)})
        request = engine.generate(tokens(2 * N)).request
        found += lines(tmp_path / name)[1]["hash_ids"]
        (path,) = (tmp_path / name).iterdir()
        text = path.read_text()
        for key in request.block_hashes:
            assert bytes(key).hex()[:16] not in text
    assert len(set(found)) == 4


def test_salted_requests_share_no_hash(start: StartEngine, tmp_path: Path) -> None:
    engine = start(extra={"trace_dir": str(tmp_path)})
    for salt in (None, "a", "b"):
        engine.generate(tokens(2 * N), salt=salt)
    hashes = [each for line in lines(tmp_path)[1:] for each in line["hash_ids"]]
    assert len(set(hashes)) == 6


def test_each_start_makes_a_file_of_its_own(start: StartEngine, tmp_path: Path) -> None:
    for _ in range(2):
        start(extra={"trace_dir": str(tmp_path)})
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_ends_the_recording_and_nothing_else(
    start: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(extra={"trace_dir": str(tmp_path)})
    engine.generate(tokens(2 * N, 1))
    written = engine.connector.scheduler._recording

    def full(line: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(written, "_write", full)
    for seed in (2, 3):
        engine.generate(tokens(2 * N, seed))
    engine.check_idle()
    assert counters(engine)["failures:recording"] == 1
    assert len(lines(tmp_path)) == 2


def test_a_recording_ends_before_it_is_too_large(
    start: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(recording.logger, "warning", lambda text, *given: said.append(text % given))
    monkeypatch.setattr(recording, "MOST_BYTES", 1000)
    engine = start(extra={"trace_dir": str(tmp_path)})
    sizes = []
    for seed in range(30):
        engine.generate(tokens(2 * N, seed))
        (path,) = tmp_path.iterdir()
        sizes.append(path.stat().st_size)
    assert 800 < sizes[-1] <= 1000
    assert sizes == sorted(sizes) and sizes[-15:] == sizes[-1:] * 15
    requests = Trace.open(path).requests
    assert len(lines(tmp_path)) == 1 + requests
    (ended,) = [each for each in said if "recording" in each]
    assert f"{path} ends with {requests} requests: " in ended
    engine.check_idle()
    assert "failures:recording" not in counters(engine)


def test_a_directory_that_cannot_be_made_is_said_at_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SettingsError, match=r"trace_dir: expected a directory.*found .*file"):
        Engine(transfer=connector(trace_dir=str(file)))


def test_the_lab_reads_what_was_recorded(start: StartEngine, tmp_path: Path) -> None:
    engine = start(extra={"trace_dir": str(tmp_path), "host_gb": 0.05}, batched_tokens=400)
    shared = tokens(6 * N)
    for visitor in range(6):
        assert engine.reset_prefix_cache()
        engine.generate(shared + tokens(3 * N, visitor))
    (path,) = tmp_path.iterdir()
    trace = Trace.open(path)
    assert (trace.block_tokens, trace.requests) == (N, 6)
    rows = replay_traces([trace], ["align-lru", "junction-lru"], ratio=3, fractions=[1.0], units=[])
    live = counters(engine)
    for row in rows:
        assert row.input_tokens == live["lookup_tokens"]
    assert [row.hit_tokens for row in rows] == [0, 4 * 6 * N]
    assert live["hit_tokens:host"] == 4 * 6 * N
