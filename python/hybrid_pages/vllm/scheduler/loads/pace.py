"""Measures how fast the engine computes prompts, by the times between its steps."""

from collections import deque
from collections.abc import Callable
from time import monotonic

_SAMPLES = 64
"""How many of the last steps count."""
_LEAST = 4
"""The fewest steps for a result."""


class Pace:
    """The rate of prefill in tokens per second: the median over the tokens of the last steps.

    ahead: how many steps the engine plans before it waits for the first of them; 2 if it schedules
    asynchronously. least: steps with fewer tokens do not count.
    """

    def __init__(self, ahead: int, least: int, clock: Callable[[], float] = monotonic) -> None:
        self._ahead, self._least, self._clock = ahead, least, clock
        self._planned: deque[int] = deque()
        """The tokens of the steps that may not have ended."""
        self._before = 0.0
        """When the last step was planned."""
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self.tokens_per_second: float | None = None

    def planned(self, tokens: int, requests: int) -> bool:
        """Called when a step is planned. Returns whether a step was measured.

        The engine has waited for the step that it planned ``ahead`` steps before, and for no other
        since the last call: that one took the time in between.
        """
        now, before = self._clock(), self._before
        self._before = now
        ended = self._planned.popleft() if len(self._planned) == self._ahead else 0
        prompts = tokens >= self._least and tokens >= 2 * requests
        self._planned.append(tokens if prompts else 0)
        if not ended or now <= before:
            return False
        self._samples.append((ended / (now - before), ended))
        if len(self._samples) < _LEAST:
            return False
        self.tokens_per_second = _median(list(self._samples))
        return True

    def rested(self) -> None:
        """Called when the engine has nothing to do, so that the time until the next step is
        ignored."""
        self._planned.clear()

    def seconds(self, tokens: int) -> float:
        """How long it would take to compute so many tokens of a prompt; infinite if unknown."""
        rate = self.tokens_per_second
        return float("inf") if rate is None else tokens / rate


def _median(samples: list[tuple[float, int]]) -> float:
    """The rate at which, or faster, half of the tokens were computed."""
    samples.sort(reverse=True)
    left = sum(tokens for _, tokens in samples) / 2
    for rate, tokens in samples:
        left -= tokens
        if left <= 0:
            return rate
    return samples[-1][0]
