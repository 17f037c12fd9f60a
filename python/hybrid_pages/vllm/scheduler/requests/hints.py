"""Hints that an application may give with a request, listed in ``docs/hints.md``.

An example: ``kv_transfer_params={"hybrid_pages": {"session": "chat 7", "retain": 600}}``. A wrong
hint is ignored; the others of the request count.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hybrid_pages import Hints, HybridPagesError
from hybrid_pages.vllm.scheduler.requests.check import KEY, NAME, SALT, wrong

MOST_KEYS = 64
MOST_POSITIONS = 64
MOST_SESSION = 256
MOST_PRIORITY = 10
MOST_SECONDS = 24 * 60 * 60
"""The longest time that a hint may name."""


class HintError(HybridPagesError, ValueError):
    """An invalid hint; the request runs as if it had not been given."""


@dataclass(frozen=True)
class RequestHints:
    """The valid hints of one request."""

    checkpoint_at: tuple[int, ...] = ()
    """Token positions, each for a checkpoint at the last boundary at or before it and, where steps
    may end inside blocks, at the position itself."""
    session: str | None = None
    """Requests with the same id and the same ``cache_salt`` are turns of one conversation."""
    priority: int = 0
    """From -10 to 10: each step doubles the value of the request's checkpoints."""
    retain: float = 0.0
    """For how many seconds the request's entries stay longer than all that are not retained."""
    store: bool = True
    """Whether entries of the request are stored."""
    expect_in: float | None = None
    """How many seconds after the end of the request the next one of its session comes."""
    release: bool = False
    """Whether nothing of the request's session comes again."""
    errors: tuple[HintError, ...] = field(default=(), compare=False)
    """A message for each ignored hint."""

    def for_policy(self, salt: str | None) -> Hints | None:
        """The hints for the cache's policy. salt: of the request; it keeps sessions apart."""
        if self is NOTHING:
            return None
        name = None if self.session is None else session_name(self.session, salt)
        return Hints(session=name, priority=self.priority, retain=self.retain, store=self.store)


NOTHING = RequestHints()
"""The hints of a request without any."""


def session_name(session: str, salt: str | None) -> bytes:
    """The id of a session under a salt."""
    return json.dumps([salt, session]).encode()


def read_hints(
    params: Mapping[str, Any] | None, tokens: int, salt: str | None = None
) -> RequestHints:
    """Reads a request's ``kv_transfer_params``; keys of other connectors are left alone.

    Args:
        params: of the request.
        tokens: length of the prompt.
        salt: of the request.
    """
    given = params.get(KEY) if params else None
    if given is None:
        return NOTHING
    if not isinstance(given, Mapping):
        error = HintError(f"{KEY}: expected a mapping, found {type(given).__name__}")
        return RequestHints(errors=(error,))
    if len(given) > MOST_KEYS:
        error = HintError(f"{KEY}: expected at most {MOST_KEYS} keys, found {len(given)}")
        return RequestHints(errors=(error,))
    values: dict[str, Any] = {}
    errors = []
    for key, value in given.items():
        try:
            check = _CHECKS.get(key) if isinstance(key, str) else None
            if check is None:
                raise HintError(
                    f"{KEY}: expected some of {', '.join(_CHECKS)}, found {_shown(key)}"
                )
            if key == NAME:
                _require_own(value, salt)
            else:
                values[key] = check(value, tokens)
        except HintError as error:
            errors.append(error)
    return RequestHints(**values, errors=tuple(errors))


def _require_own(value: Any, salt: str | None) -> None:
    """Checks the hint of a request of ``hybrid-pages verify --url``, which is read elsewhere."""
    if trouble := wrong(value):
        raise HintError(f"{NAME}: {trouble}, found {_shown(value)}")
    if not (salt or "").startswith(SALT):
        raise HintError(f"{NAME}: expected a cache_salt that begins with {SALT}, found another")


def _positions(value: Any, tokens: int) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise HintError(
            f"checkpoint_at: expected a list of token positions, found {type(value).__name__}"
        )
    if len(value) > MOST_POSITIONS:
        raise HintError(
            f"checkpoint_at: expected at most {MOST_POSITIONS} positions, found {len(value)}"
        )
    for position in value:
        if not _is_whole(position):
            raise HintError(f"checkpoint_at: expected whole numbers, found {_shown(position)}")
        if not 0 < position <= tokens:
            raise HintError(
                f"checkpoint_at: expected positions from 1 to {tokens}, the length of the prompt, "
                f"found {_shown(position)}"
            )
    return tuple(value)


def _session(value: Any, tokens: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MOST_SESSION:
        raise HintError(
            f"session: expected a text of 1 to {MOST_SESSION} characters, found {_shown(value)}"
        )
    return value


def _priority(value: Any, tokens: int) -> int:
    if not _is_whole(value) or abs(value) > MOST_PRIORITY:
        raise HintError(
            f"priority: expected a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}, "
            f"found {_shown(value)}"
        )
    return int(value)


def _seconds(name: str) -> Callable[[Any, int], float]:
    def check(value: Any, tokens: int) -> float:
        number = _is_whole(value) or (isinstance(value, float) and math.isfinite(value))
        if not number or not 0 <= value <= MOST_SECONDS:
            raise HintError(
                f"{name}: expected seconds from 0 to {MOST_SECONDS}, found {_shown(value)}"
            )
        return float(value)

    return check


def _truth(name: str) -> Callable[[Any, int], bool]:
    def check(value: Any, tokens: int) -> bool:
        if not isinstance(value, bool):
            raise HintError(f"{name}: expected true or false, found {_shown(value)}")
        return value

    return check


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A short text for a value that may be long, deeply nested or too large an integer to print."""
    kind = type(value).__name__
    if isinstance(value, str):
        return f"{value[:40]!r} of type {kind}"
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 64):
        return f"{value!r} of type {kind}"
    return f"one of type {kind}"


_CHECKS: dict[str, Callable[[Any, int], Any]] = {
    "checkpoint_at": _positions,
    "session": _session,
    "retain": _seconds("retain"),
    "priority": _priority,
    "store": _truth("store"),
    "expect_in": _seconds("expect_in"),
    "release": _truth("release"),
    NAME: lambda value, tokens: value,
}
