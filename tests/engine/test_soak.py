"""Engines under mixed traffic, one after another on one disk and one store, which fail on and off.

`HYBRID_PAGES_SOAK` is the number of minutes. Every fourth engine is killed, the others end in order
and must have given everything back. All answers are compared (`tests/engine/serve_soak.py`).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from planted_soak import PLANTS
from prove_report import report
from soak_styles import STYLES

SCRIPT = Path(__file__).with_name("serve_soak.py")
MINUTES = float(os.environ.get("HYBRID_PAGES_SOAK", "2"))
LIFE_SECONDS, SHORT_SECONDS = 300.0, 20.0
# What an engine may take to start, and its life on a busy machine.
LONGEST = 300.0 + 3 * LIFE_SECONDS
MOST = "MiB that the memory of an engine grew by at most, from the second third to the last"


def live(model: Path, folder: Path, plan: dict[str, Any], kill: float | None) -> dict[str, Any]:
    """One engine's life: its last events by name, and what it printed. kill: seconds of traffic."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, model, folder, json.dumps(plan)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=SCRIPT.parent,
    )
    timer = threading.Timer(LONGEST, process.kill)
    timer.start()
    events: dict[str, Any] = {}
    lines: list[str] = []
    for line in process.stdout or ():
        if not line.startswith("HP "):
            lines.append(line)
            continue
        event = json.loads(line[3:])
        name = event.pop("event")
        if name == "ready" and kill is not None:
            threading.Timer(kill, process.kill).start()
        events[f"grew {event['what']}" if name == "grew" else name] = event
    process.wait()
    timer.cancel()
    print(json.dumps({"plan": plan, "killed": kill is not None} | events), flush=True)
    events["printed"] = "".join(lines[-80:])
    return events


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 2 * LONGEST)
def test_every_answer_is_right_and_nothing_is_leaked(model, tmp_path):
    rng = random.Random("soak")
    total: dict[str, float] = {"engines": 0, "killed": 0, "wrong": 0}
    end = time.monotonic() + 60 * MINUTES
    while (left := end - time.monotonic()) > 0 or total["engines"] == 0:
        life = int(total["engines"])
        style = [*STYLES][life % len(STYLES)]
        plan = {
            "life": life,
            "seconds": min(LIFE_SECONDS, 20 * MINUTES, max(SHORT_SECONDS, left)),
            "host_gb": [0.05, 0.004][life % 2],
            "style": style,
            "resets": life % 5 == 4,
        }
        kill = rng.uniform(10, plan["seconds"]) if life % 4 == 1 else None
        events = live(model(STYLES[style].model), tmp_path, plan, kill)
        assert "ready" in events, events["printed"]
        assert kill is not None or "done" in events, events["printed"]
        found = events.get("ended") or events["alive"]
        assert found["wrong"] == [], found
        total["engines"] += 1
        total["killed"] += kill is not None
        counts = found["counts"] | {f"{k} tokens": v for k, v in found.get("hits", {}).items()}
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
        if grown := events.get("grew MiB"):
            most = max(total.get(MOST, 0), grown["last"] - grown["middle"])
            total[MOST] = most
        far = f"log-probability farthest off in the style {style}"
        total[far] = max(total.get(far, 0.0), found.get("farthest", 0.0))
    report(total)
    assert total["compared"] > 0


SHORT = [("float32", ""), ("float32", "a wrong byte")]
CASES = [
    ("float32", ""),
    *((style, "a wrong byte") for style in STYLES),
    *(("float32", plant) for plant in PLANTS if plant != "a wrong byte"),
]


@pytest.mark.parametrize(
    ("style", "plant"),
    [pytest.param(*it, marks=() if it in SHORT else pytest.mark.long) for it in CASES],
)
def test_what_is_planted_is_found_and_nothing_else(model, tmp_path, style, plant):
    plan = {"life": 0, "style": style, "seconds": 0, "host_gb": 0.05, "resets": False}
    plan |= {"plant": plant, "pieces": 15 if plant == "a wrong byte" else 60}
    events = live(model(STYLES[style].model), tmp_path, plan, None)
    assert "ended" in events, events["printed"]
    wrong = events["ended"]["wrong"]
    assert bool(wrong) is bool(plant), wrong
    assert all(PLANTS[plant][1] in each for each in wrong), wrong
