"""Real engines, one at a time in this process."""

from fixtures import model, start  # noqa: F401

FIRST = ("test_server", "test_processes", "test_families", "test_remote")
"""What takes longest: at the end, one process would run it while the other has nothing to do."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in FIRST)
