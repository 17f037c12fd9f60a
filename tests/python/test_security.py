"""What SECURITY.md says of threats is shown by tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_threat_has_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        shown = re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1])
        assert "/" in shown[0], row
        for name in shown:
            if "/" in name:
                source = (ROOT / name).read_text()
            else:
                assert name in source, f"expected {name} in the file before it, found none: {row}"
