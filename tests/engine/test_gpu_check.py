"""`make gpu-check` from end to end, over the mock of the driver."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "python"))

from mock_driver import build  # noqa: E402 - beside tests of Python alone

VERDICTS = {"supported", "not supported", "not measured"}


def test_the_check_runs_every_stage_and_judges_every_claim() -> None:
    environment = {
        **os.environ,
        "GPU_CHECK_DRY": "1",
        "PYTHON": sys.executable,
        "HYBRID_PAGES_LIBCUDA": str(build()),
    }
    done = subprocess.run(
        ["bash", str(ROOT / "tests" / "gpu" / "check.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "FAILED" not in said
    assert "skipped: a dry run" in said
    rows = re.findall(r"^\| (.+?) \| [-0-9.]+ \| (.*?) \| .*? \| (.+?) \|$", said, re.MULTILINE)
    verdicts = {claim: verdict for claim, _, verdict in rows}
    assert len(verdicts) == 10, said
    assert set(verdicts.values()) <= VERDICTS
    # What was measured has a number, and nothing else has.
    assert all(bool(worst) == (verdict != "not measured") for _, worst, verdict in rows)
    measured = [claim for claim, verdict in verdicts.items() if verdict != "not measured"]
    for what in ("pinned a second", "p99 of decode steps", "ten parts in flight"):
        assert any(what in claim for claim in measured), what
