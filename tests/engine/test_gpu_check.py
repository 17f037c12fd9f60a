"""`make gpu-check` from end to end, over the mock of the driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "python"), str(ROOT / "benches")]

from mock_driver import build  # noqa: E402 - beside tests of Python alone
from paging.machine import beside  # noqa: E402

VERDICTS = {"supported", "not supported", "not measured"}


def run(*command: str, **environment: str) -> tuple[int, str]:
    """Status, and what was said."""
    done = subprocess.run(
        command,
        # The options of this run of pytest are not those of the check's own.
        env=os.environ | {"PYTEST_ADDOPTS": "", "HYBRID_PAGES_LIBCUDA": str(build())} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def check(**environment: str) -> tuple[int, str]:
    script = str(ROOT / "tests" / "gpu" / "check.sh")
    return run("bash", script, GPU_CHECK_DRY="1", PYTHON=sys.executable, **environment)


def bench(**environment: str) -> tuple[int, str]:
    script = str(ROOT / "benches" / "gpu_paging.py")
    words = "--dry-run", "--budget", "1", "--rounds", "1", "--only", "auto", "copy", "kernel"
    return run(sys.executable, script, *words, **environment)


def claims(said: str) -> list[tuple[str, str, str]]:
    """Each claim, the worst that was found, and the verdict."""
    row = r"^\| (.+?) \| [-0-9.]+ \| (.*?) \| .*? \| (.+?) \|$"
    return re.findall(row, said.rpartition("==> benchmark")[2], re.MULTILINE)


def sanitizer(folder: Path, says: str) -> str:
    """A compute-sanitizer that says one thing and fails."""
    program = folder / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit 1\n")
    program.chmod(0o755)
    return str(program)


def test_the_check_runs_every_stage_and_judges_every_claim(tmp_path: Path) -> None:
    refuses = sanitizer(tmp_path, "========= Error: Device not supported. Please refer to")
    status, said = check(OUT=str(tmp_path / "out"), COMPUTE_SANITIZER=refuses)
    assert status == 0, said
    assert "FAILED" not in said
    assert "==> will be skipped: transformers: a dry run" in said
    for tool in ("memcheck", "racecheck"):
        assert f"    {tool}: skipped: compute-sanitizer says 'Device not supported'" in said
    assert (tmp_path / "out" / "gpu-check.log").read_text() == said
    kinds = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert kinds == [".json", ".json", ".log", ".png"]
    rows = claims(said)
    verdicts = {claim: verdict for claim, _, verdict in rows}
    assert len(verdicts) == 10, said
    assert set(verdicts.values()) <= VERDICTS
    # What was measured has a number, and nothing else has.
    assert all(bool(worst) == (verdict != "not measured") for _, worst, verdict in rows)
    measured = [claim for claim, verdict in verdicts.items() if verdict != "not measured"]
    for what in ("pinned a second", "p99 of decode steps", "ten parts in flight"):
        assert any(what in claim for claim in measured), what
    assert re.search(r"^    benchmark: claims: \d+ not measured, .*supported$", said, re.MULTILINE)


def test_a_sanitizer_that_finds_something_fails_the_check(tmp_path: Path) -> None:
    finds = sanitizer(tmp_path, "========= ERROR SUMMARY: 1 error")
    status, said = check(COMPUTE_SANITIZER=finds, GPU_CHECK_ONLY="memcheck")
    assert status == 1
    assert said.splitlines()[-1] == "    memcheck: FAILED with 1: ========= ERROR SUMMARY: 1 error"


def test_a_check_in_which_nothing_can_run_has_failed() -> None:
    status, said = check(GPU_CHECK_ONLY="memcheck")
    assert status == 1
    assert said.splitlines()[-2:] == [
        "    memcheck: skipped: a dry run",
        "==> FAILED: no stage could run",
    ]


@pytest.mark.long
def test_a_transfer_that_fails_fails_the_check_and_leaves_what_was_measured() -> None:
    status, said = bench(MOCK_CUDA_FAIL="cuMemcpyBatchAsync:25:719:1")
    assert status == 1, said
    last = r"^claims: .* faults: \d, the first: .*CUDA_ERROR_LAUNCH_FAILED"
    assert re.search(last, said, re.MULTILINE)
    verdicts = {claim: verdict for claim, _, verdict in claims(said)}
    for claim, verdict in verdicts.items():
        assert (verdict != "not measured") == (
            "pinned a second" in claim or "ten parts in flight" in claim
        ), claim


@pytest.mark.long
@pytest.mark.parametrize(
    ("unkind", "warning"),
    [
        ({"MOCK_CUDA_NO_CUBIN": "1", "MOCK_CUDA_NO_PTX": "1"}, "no kernels for compute capability"),
        ({"MOCK_CUDA_NO_PINNING": "1"}, "go through pageable memory"),
    ],
)
def test_kernels_that_cannot_run_are_not_measured(unkind: dict[str, str], warning: str) -> None:
    status, said = bench(**unkind)
    assert status == 0, said
    assert warning in said.partition("\nwarning: ")[2]
    staged = [verdict for claim, _, verdict in claims(said) if "staged" in claim]
    assert staged == ["not measured"] * 3, said


def test_a_machine_without_a_gpu_has_nothing_to_check_and_one_whose_gpu_fails_has(
    tmp_path: Path,
) -> None:
    library = {"HYBRID_PAGES_LIBCUDA": str(tmp_path / "libcuda.so.1")}
    status, said = check(**library, GPU_CHECK_DEVICES=str(tmp_path / "nvidia[0-9]*"))
    assert (status, "nothing to check: " in said) == (0, True), said
    (tmp_path / "nvidia3").touch()
    status, said = check(**library, GPU_CHECK_DEVICES=str(tmp_path / "nvidia[0-9]*"))
    assert (status, "FAILED: there is a GPU, and it can't be used: " in said) == (1, True), said


def test_what_runs_beside_does_so_until_the_end_and_its_errors_are_told() -> None:
    done, more = [], threading.Event()

    def act() -> None:
        done.append(threading.current_thread())
        if len(done) == 4:
            more.set()
            raise ValueError("the fourth")

    with pytest.raises(ValueError, match="the fourth"), beside(act):
        assert done[0] is threading.current_thread()
        assert more.wait(60)
    assert len(done) == 4
    with beside(None):
        pass
