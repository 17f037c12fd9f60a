"""What `benches/gpu_first_hour.py` asks of a GPU, asked of the mock of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHES = ROOT / "benches"
sys.path.append(str(BENCHES))

from paging import questions  # noqa: E402 - a bench's

WITHOUT_TORCH = {one.key for one in questions.QUESTIONS} - {"expandable"}

# A store that moves nothing the second time, and a load that moves nothing.
FAULTS = """
from paging import mapped, questions
from paging.driver import Driver
from paging.plain import Plain

store, stored = Plain.store, {}

def once(place, stream):
    if place not in stored:
        stored[place] = store(place, stream)
    return stored[place]

driver = Driver()
Plain.store = once
print(questions.is_wrong(mapped.remapped(driver, True)[0]))
Plain.load = lambda *_: None
print(questions.is_wrong(mapped.round_trip(driver, True)[0]))
"""


def run(library: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Status, and what was said."""
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"HYBRID_PAGES_LIBCUDA": str(library)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=BENCHES,
    )
    return done.returncode, done.stdout + done.stderr


def first_hour(library: Path, out: Path, *words: str, **environment: str) -> tuple[int, str, dict]:
    """Status, what was said, and what was written."""
    status, said = run(
        library, "gpu_first_hour.py", "--dry-run", *words, OUT=str(out), **environment
    )
    (path,) = out.iterdir()
    return status, said, json.loads(path.read_text())


def test_every_question_is_answered_and_the_answers_are_where_out_says(mock_library, tmp_path):
    before = sorted((BENCHES / "results").iterdir())
    status, said, written = first_hour(mock_library, tmp_path / "out")
    assert status == 0, said
    assert written["answers"].keys() - {"expandable"} == WITHOUT_TORCH, said
    assert (written["failed"], written["left_out"]) == ({}, [])
    assert "mock CUDA: " not in json.dumps(written)
    exact = ("captures", "mapped", "remapped", "unmapped, copies", "unmapped, kernels")
    assert {written["answers"][key] for key in exact} == {0}
    assert "broken: " in written["facts"]["unmapped-kernels"]["the context"]
    assert questions.table(written["answers"]) in said
    assert sorted((BENCHES / "results").iterdir()) == before


def test_a_measurement_that_fails_is_named_and_the_rest_goes_on(mock_library, tmp_path):
    status, said, written = first_hour(
        mock_library,
        tmp_path,
        *("--only", "mapped", "capture", "unmapped-copies"),
        MOCK_CUDA_FAIL="cuMemMap:1:2:0",
    )
    assert status == 1
    why = "cuMemMap failed with 2 (CUDA_ERROR_OUT_OF_MEMORY)"
    assert written["failed"].keys() == {"mapped", "unmapped-copies"}
    assert all(found.endswith(why) for found in written["failed"].values())
    assert written["answers"] == {"captures": 0}
    assert "; failed: mapped, unmapped-copies" in said.splitlines()[-1]


def test_launches_that_wait_for_a_registration_show(mock_library, tmp_path):
    """The mock registers 16 MiB in one call, and all other calls wait for it."""
    for _ in range(5):  # on busy cores nobody may launch meanwhile
        status, said, written = first_hour(
            mock_library, tmp_path, "--only", "pinning", MOCK_CUDA_REGISTER_US="5000"
        )
        assert status == 0, said
        if written["answers"]["launch"] > 50:
            break
    assert written["answers"]["launch"] > 50
    assert "launches wait for a piece" in said


def test_a_measurement_that_hangs_is_stopped(mock_library, tmp_path):
    status, said, written = first_hour(
        mock_library,
        tmp_path,
        *("--only", "capture", "mapped", "--budget", "1"),
        MOCK_CUDA_REGISTER_US="10000000",
    )
    assert (status, written["failed"].keys(), written["left_out"]) == (1, {"capture"}, ["mapped"])
    assert written["failed"]["capture"].startswith("stopped after 1 s"), said


def test_what_the_time_does_not_reach_is_named(mock_library, tmp_path):
    status, said, written = first_hour(mock_library, tmp_path, "--only", "capture", "--budget", "0")
    assert (status, written["left_out"], written["answers"]) == (0, ["capture"], {})
    assert "the budget left out: capture" in said


def test_old_bytes_and_bytes_that_differ_are_found(mock_library):
    status, said = run(mock_library, "-c", FAULTS)
    assert (status, said) == (0, "True\nTrue\n")


def test_the_document_says_what_each_answer_would_mean():
    assert questions.meanings() in (ROOT / "tests" / "gpu" / "README.md").read_text()
