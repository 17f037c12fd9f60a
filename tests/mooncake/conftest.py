"""A real Mooncake Store, in a network namespace where nobody else is: `make test-mooncake`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from real_mooncake import Store, why_not


def pytest_collection_modifyitems(items):
    reason = why_not()
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def mooncake(tmp_path):
    assert importlib.util.find_spec("mooncake")
    with Store(tmp_path) as store:
        yield store
