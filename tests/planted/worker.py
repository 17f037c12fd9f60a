"""Runs the tests of one folder for each fault, in children that share what is slow to import."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

TREE = Path(__file__).parents[2]
LOGS = TREE.parent
SHARED = {
    "scheduler": ("torch", "vllm", "vllm.v1.core.sched.scheduler"),
    "transformers": ("torch", "transformers"),
    "batch": ("torch",),
    "mlx": ("numpy",),
    "python": ("numpy",),
}
ENVIRONMENT = TREE / "tests" / "scheduler" / "vllm_environment.py"


def run(tests: Sequence[str], log: str) -> int:
    """Runs tests in a child process; returns pytest's exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        import pytest

        with (LOGS / f"{log}.log").open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--timeout=300", *tests]))
            sys.stdout.flush()
    except BaseException as error:
        print(error, file=sys.stderr)
        code = 3
    os._exit(code)


def main() -> None:
    (suite,) = sys.argv[1:]
    from fault import file_of

    from faults import FAULTS

    names = json.load(sys.stdin)
    runpy.run_path(str(ENVIRONMENT))
    for module in SHARED[suite]:
        importlib.import_module(module)
    assert "hybrid_pages" not in sys.modules
    faults = [fault for fault in FAULTS if fault.name in names]
    folder = f"tests/{suite}/"
    every = sorted({folder + test for fault in faults for test in fault.tests})
    files = {test for test in every if "::" not in test}
    every = [t for t in every if t in files or t.partition("::")[0] not in files]
    outcomes = {0: "passes", 1: "fails"}
    say = os.fdopen(os.dup(1), "w")

    def told(name: str, code: int) -> None:
        print(json.dumps([name, outcomes.get(code, f"pytest ends with {code}")]), file=say)
        say.flush()

    told("", run(every, f"none-{suite}"))
    for fault in faults:
        file = file_of(fault, TREE)
        whole = file.read_text()
        file.write_text(whole.replace(fault.find, fault.replace))
        try:
            told(fault.name, run([folder + test for test in fault.tests], fault.slug))
        finally:
            file.write_text(whole)


if __name__ == "__main__":
    main()
