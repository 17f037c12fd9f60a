"""An engine's process, from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import IO, Any

from hybrid_pages import HybridPagesError
from hybrid_pages.cause import cause_of, with_fix
from hybrid_pages.verify.tiers import EngineStart
from hybrid_pages.vllm.config.settings import PLANT_VARIABLE

_TAIL, _END_SECONDS, _LOOK_SECONDS = 40, 90.0, 1.0


class EngineFailed(HybridPagesError, RuntimeError):
    """The engine can't be started or can't go on; with its reason, or the last lines of its log and
    what went wrong first."""

    def __init__(self, message: str, *, by_log: bool = False) -> None:
        super().__init__(message)
        self.by_log = by_log
        """Whether the engine's log says more about the error."""


class EngineProcess:
    """A process of :mod:`hybrid_pages.verify.engine`, in a group that is gone afterwards.

    Args:
        log: a file for what it prints; None shows that on standard error.
        plant: the fault that its settings may plant.
    """

    def __init__(self, log: IO[bytes] | None, plant: str = "") -> None:
        self._log = log
        self._begins = log.tell() if log is not None else 0
        answer_read, answer_write = os.pipe()
        environment = {key: value for key, value in os.environ.items() if key != PLANT_VARIABLE}
        if plant:
            environment[PLANT_VARIABLE] = plant
        output = sys.stderr if log is None else log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hybrid_pages.verify.engine", str(answer_write)],
            env=environment,
            pass_fds=(answer_write,),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        os.close(answer_write)
        self.pid = self._process.pid
        self._answers, self._rest = answer_read, b""

    def arrange(self, model: str, flags: list[str], start: EngineStart) -> dict[str, Any]:
        """Reads the user's flags.

        Returns:
            The tiers, their places, and what differs from the user's settings.
        """
        return self.ask("arrange", model=model, flags=flags, start=vars(start))

    def start(self) -> dict[str, Any]:
        """Starts the engine.

        Returns:
            Its facts.
        """
        return self.ask("start")

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer.

        Raises:
            EngineFailed: the engine has failed or its process is gone.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        found = json.loads(self._line())
        if "error" in found:
            raise self._failed(found["error"], by_log=not found["known"])
        return dict(found)

    def _line(self) -> bytes:
        """The next line. A child of the process may hold the pipe open when the process is gone."""
        while b"\n" not in self._rest:
            ended = self._process.poll() is not None
            ready, _, _ = select.select([self._answers], [], [], 0 if ended else _LOOK_SECONDS)
            more = os.read(self._answers, 1 << 20) if ready else b""
            if not more and (ready or ended):
                raise self._died()
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _died(self) -> EngineFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK_SECONDS)
        text = f"the engine's process ended with status {self._process.returncode}"
        return self._failed(text, by_log=True)

    def _failed(self, text: str, *, by_log: bool) -> EngineFailed:
        if not by_log:
            return EngineFailed(text)
        if self._log is None:
            return EngineFailed(f"{text}\nits output is above")
        self._log.seek(self._begins)
        log = self._log.read().decode(errors="replace")
        said = [text, "the last lines of its log:", *log.splitlines()[-_TAIL:]]
        cause = cause_of(log, self._process.poll()) or with_fix(text)
        if cause != text:
            said += ["", f"what went wrong first: {cause}"]
        return EngineFailed("\n".join(said), by_log=True)

    def close(self) -> None:
        """Ends the engine, gently first, and every process of its group."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        finally:
            self._end_group()
            self._process.wait()
            os.close(self._answers)

    def kill(self) -> None:
        """Ends the process at once."""
        self._end_group()
        self.close()

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            for _ in range(100):
                os.killpg(self.pid, 0)
                time.sleep(0.01)
                self._process.poll()
