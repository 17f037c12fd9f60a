"""What every result says of where it was made, and where it is kept."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import hybrid_pages

RESULTS = Path(__file__).parents[1] / "results"


def facts() -> dict[str, Any]:
    """When, of what, with which driver."""
    commit = os.environ.get("HYBRID_PAGES_COMMIT") or _output("git", "rev-parse", "HEAD")
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or "unknown",
        "driver": driver.splitlines()[0] if driver else "unknown",
        "hybrid_pages": hybrid_pages.__version__,
        "kernel": platform.release(),
        "processors": os.cpu_count(),
    }


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def folders(chosen: Path, dry: bool) -> list[Path]:
    """The chosen folder, unless the run is dry, and the one that OUT names."""
    out = os.environ.get("OUT")
    return ([] if dry else [chosen]) + ([Path(out)] if out else [])


def write(figures: dict[str, Any], name: str, into: list[Path]) -> list[Path]:
    """`<date>-<name>-<device>.json` in each folder; the paths."""
    device = "".join(c if c.isalnum() else "-" for c in figures["device"].lower()).strip("-")
    paths = []
    for folder in into:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{figures['date'][:10]}-{name}-{device}.json"
        path.write_text(json.dumps(figures, indent=1) + "\n")
        paths.append(path)
    return paths
