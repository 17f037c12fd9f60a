"""The result of a run as metrics: a file in Prometheus' text format, as its node exporter reads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hybrid_pages.scrape import Samples, parse

PREFIX = "hybrid_pages_verify_"
METRICS = {
    "status": "The exit status of the last run: 0 equal, 1 different, 2 it could not tell.",
    "run_timestamp_seconds": "When the last run ended.",
    "equal_timestamp_seconds": "When a run last found all equal.",
    "different_timestamp_seconds": "When a run last found a difference.",
    "seconds": "How long the last run took.",
    "computed_tokens": "Prompt tokens that the engine computed for the last run.",
    "noise": "The largest difference of log-probabilities between equal cold runs of the last run.",
    "difference": "The largest difference of log-probabilities of what the last run restored, "
    "by tier.",
    "restored_tokens": "Tokens that the last run restored, by tier.",
}
"""The metrics, by their names without the prefix."""
_KEPT = {0: "equal_timestamp_seconds", 1: "different_timestamp_seconds"}


def write(path: Path, url: str, status: int, found: Mapping[str, Any] | None) -> None:
    """Replaces the file as a whole. Of a run before, it keeps when that was equal or different.

    Args:
        path: of the file.
        url: the address of the server, a label of all metrics.
        status: the exit status.
        found: the report, if there is one.

    Raises:
        OSError: it can't be written.
    """
    try:
        before = parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        before = Samples()
    lines: list[str] = []
    for name, values in _values(before, url, status, found).items():
        lines.append(f"# HELP {PREFIX}{name} {METRICS[name]}")
        lines.append(f"# TYPE {PREFIX}{name} gauge")
        for labels, value in values:
            lines.append(f"{PREFIX}{name}{{{_labels({'url': url, **labels})}}} {value!r}")
    # A reader sees the old file or the new one, never a part.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


_Values = dict[str, list[tuple[dict[str, str], float]]]


def _values(before: Samples, url: str, status: int, found: Mapping[str, Any] | None) -> _Values:
    now = time.time()
    values: _Values = {"status": [({}, float(status))], "run_timestamp_seconds": [({}, now)]}
    for of_status, name in _KEPT.items():
        earlier = [sample.value for sample in before.all(PREFIX + name, url=url)]
        if status == of_status:
            values[name] = [({}, now)]
        elif earlier:
            values[name] = [({}, earlier[0])]
    if found is not None:
        values["seconds"] = [({}, float(found["costs"]["seconds"]))]
        values["computed_tokens"] = [({}, float(found["costs"]["computed_tokens"]))]
        values["noise"] = [({}, _number(found["noise"]["cold"]))]
        tiers = found["tiers"]
        values["difference"] = [
            (
                {"tier": tier},
                max((_number(row["difference"]) for row in _rows(found, tier)), default=0.0),
            )
            for tier in tiers
        ]
        values["restored_tokens"] = [
            ({"tier": tier}, float(sum(row["restored_tokens"] for row in _rows(found, tier))))
            for tier in tiers
        ]
    return values


def _rows(found: Mapping[str, Any], tier: str) -> Iterator[Mapping[str, Any]]:
    for prompt in found["prompts"]:
        for rows in (prompt["tiers"], prompt["rest_of_answer"]):
            if tier in rows:
                yield rows[tier]


def _number(value: float | None) -> float:
    """A difference without a bound is None in a report."""
    return float("inf") if value is None else float(value)


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
