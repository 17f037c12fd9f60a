"""Ends a command by any signal as by Ctrl-C, so that it leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends a command like Ctrl-C."""


@contextmanager
def interruptible(*signals: signal.Signals) -> Iterator[None]:
    """Raises KeyboardInterrupt when one of these signals comes, until the block ends."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
