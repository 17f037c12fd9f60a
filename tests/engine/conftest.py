"""Real engines, one at a time in this process."""

from fixtures import model, start  # noqa: F401
