"""Other engines on a store, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SCRIPT = Path(__file__).with_name("serve_remote.py")


class Peer:
    """An engine in another process; see `serve_remote.py`."""

    def __init__(self, model: Path, url: str, role: str, env: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT, model, url, role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env,
        )
        self._answer("READY")

    def run(self, seed: object) -> int:
        """Runs the prompts of a seed; returns the tokens that it had not to compute."""
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        return int(self._answer("DONE").split()[1])

    def check(self, seed: object) -> None:
        """Runs the prompts of a seed, which others have stored; see `check_restored`."""
        self.run(f"check {seed}")

    def _answer(self, word: str) -> str:
        for line in self._process.stdout:
            self.lines.append(line)
            if line.startswith(word):
                return line
        raise AssertionError("the engine ended:\n" + "".join(self.lines[-80:]))

    def end(self) -> None:
        """Ends the engine."""
        self._process.kill()
        self._process.communicate()
