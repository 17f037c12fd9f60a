"""The list of planted faults (tests/planted) fits the sources and the tests."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "planted"))

from fault import Fault, file_of  # noqa: E402

from faults import FAULTS  # noqa: E402


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.slug)
def test_a_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    path = file_of(fault, ROOT)
    assert path.read_text().replace(fault.find, fault.replace) != path.read_text()
    if path.suffix == ".rs" and fault.suite.startswith("hybrid-pages"):
        return
    for test in fault.tests:
        file, _, function = test.partition("::")
        text = (ROOT / "tests" / fault.suite / file).read_text()
        assert re.search(rf"^def {function}\(", text, re.MULTILINE), test


def test_every_room_has_faults_and_no_two_have_one_name() -> None:
    assert len(FAULTS) >= 25
    assert Counter(fault.slug for fault in FAULTS).most_common(1)[0][1] == 1
    suites = {fault.suite for fault in FAULTS}
    assert {"scheduler", "transformers", "mlx", "batch", "python"} <= suites
    assert {"hybrid-pages", "hybrid-pages-disk", "hybrid-pages-remote"} <= suites
