"""Progress while long parts run, with the engine's output shown only after a failure."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Shows on standard error that a part runs, for how long, and how it ended."""
    started, done = time.perf_counter(), threading.Event()
    terminal = os.dup(2)
    watched = os.isatty(terminal)

    def tick() -> None:
        while not done.wait(1):
            _say(terminal, f"\r{text} ... {time.perf_counter() - started:.0f} s")

    _say(terminal, f"{text} ..." + ("" if watched else "\n"))
    ticking = threading.Thread(target=tick, daemon=True)
    if watched:
        ticking.start()
    try:
        yield
        outcome = "done in"
    except BaseException:
        outcome = "failed after"
        raise
    finally:
        done.set()
        if watched:
            ticking.join()
        took = f"{time.perf_counter() - started:.1f} s"
        _say(terminal, ("\r" if watched else "") + f"{text}: {outcome} {took}\n")
        os.close(terminal)


def _say(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode())


@contextmanager
def hushed(*, verbose: bool) -> Iterator[None]:
    """Hides everything printed inside, by any library; shows it after a failure.

    Both the descriptors and ``sys.stdout`` and ``sys.stderr`` are redirected: vLLM's log handler
    keeps the stream that it finds when the first engine starts, which need not write to descriptor
    1 (under a test's capture it does not).
    """
    if verbose:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    # Never closed: a log handler made inside may keep one.
    out, err = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        failed = True
        try:
            with redirect_stdout(out), redirect_stderr(err):
                yield
            failed = False
        finally:
            out.flush()
            err.flush()
            for descriptor, original in enumerate(saved, start=1):
                os.dup2(original, descriptor)
                os.close(original)
            if failed:
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))
