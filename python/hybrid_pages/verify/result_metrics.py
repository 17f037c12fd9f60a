"""The result of a run as metrics: a file in Prometheus' text format, as its node exporter reads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hybrid_pages.scrape import Sample, Samples, parse
from hybrid_pages.verify.verdict import DIFFERS

PREFIX = "hybrid_pages_verify_"
METRICS = {
    "status": "The exit status of the last run: 0 equal, 1 different or a load failed, 2 it could "
    "not tell.",
    "run_timestamp_seconds": "When the last run ended.",
    "equal_timestamp_seconds": "When a run last found all equal.",
    "different_timestamp_seconds": "When a run last found a difference.",
    "failed_load_timestamp_seconds": "When a load of a run last failed, and was computed again.",
    "seconds": "How long the last run took.",
    "computed_tokens": "Prompt tokens that the engine computed for the last run.",
    "noise": "The largest difference of log-probabilities between equal cold runs of the last run.",
    "difference": "The largest difference of log-probabilities of what the last run restored, "
    "by tier.",
    "restored_tokens": "Tokens that the last run restored, by tier.",
}
"""The metrics, by their names without the prefix."""


def write(path: Path, url: str, model: str, status: int, found: Mapping[str, Any] | None) -> None:
    """Replaces the file as a whole. It keeps what it has of other addresses and models, and of this
    model when a run last found all equal, found a difference, or had a load that failed.

    Args:
        path: of the file.
        url: the address of the server, a label of all metrics, as is the model.
        model: what was verified; empty if no server has told. The result counts for every model
            then that the file has of this address.
        status: the exit status.
        found: the report, if there is one.

    Raises:
        OSError: it can't be written.
    """
    try:
        before = parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        before = Samples()
    kept = [each for name in METRICS for each in before.all(PREFIX + name, url=url)]
    models = {model} if model else {each.labels.get("model", "") for each in kept} or {""}
    values = {name: _of_others(before, name, url, models) for name in METRICS}
    for each in sorted(models):
        for name, more in _values(before, url, each, status, found).items():
            values[name] += [({"url": url, "model": each, **labels}, it) for labels, it in more]
    lines: list[str] = []
    for name, rows in values.items():
        if rows:
            lines.append(f"# HELP {PREFIX}{name} {METRICS[name]}")
            lines.append(f"# TYPE {PREFIX}{name} gauge")
        lines += [f"{PREFIX}{name}{{{_labels(labels)}}} {value!r}" for labels, value in rows]
    # A reader sees the old file or the new one, never a part.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


_Values = list[tuple[Mapping[str, str], float]]


def _of_others(before: Samples, name: str, url: str, models: set[str]) -> _Values:
    """What stays of other addresses and models. Nothing of no model stays beside this run's."""

    def stays(sample: Sample) -> bool:
        return sample.labels.get("url") != url or bool(
            sample.labels.get("model") and sample.labels["model"] not in models
        )

    return [(it.labels, it.value) for it in before.all(PREFIX + name) if stays(it)]


def _values(
    before: Samples, url: str, model: str, status: int, found: Mapping[str, Any] | None
) -> dict[str, _Values]:
    now = time.time()
    values: dict[str, _Values] = {
        "status": [({}, float(status))],
        "run_timestamp_seconds": [({}, now)],
    }
    differs = found is not None and any(
        row["verdict"] == DIFFERS for tier in found["tiers"] for row in _rows(found, tier)
    )
    for name, happened in (
        ("equal_timestamp_seconds", status == 0),
        ("different_timestamp_seconds", differs),
        ("failed_load_timestamp_seconds", found is not None and bool(found["failed_loads"])),
    ):
        earlier = [it.value for it in before.all(PREFIX + name, url=url, model=model)]
        if happened or earlier:
            values[name] = [({}, now if happened else earlier[0])]
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
