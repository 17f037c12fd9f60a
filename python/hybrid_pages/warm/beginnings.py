"""Reads the beginnings of prompts from files: texts, token ids, chat messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_pages import HybridPagesError
from hybrid_pages.arguments import require_file

_MOST_BYTES = 64 << 20
_FORMS = (
    "a text, a list of token ids, a list of messages, or an object with `prompt`, "
    "`prompt_token_ids` or `messages`"
)
_CHAT_KEYS = ("tools", "chat_template_kwargs")


class BeginningError(HybridPagesError, ValueError):
    """A file holds no beginning of a prompt."""


@dataclass(frozen=True)
class Beginning:
    """The beginning of prompts. One of ``text``, ``tokens`` and ``messages`` is given."""

    name: str
    """The file's, with the line if it has several."""
    text: str = ""
    tokens: tuple[int, ...] = ()
    messages: tuple[dict[str, Any], ...] = ()
    chat: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template gets besides the messages, such as tools."""


def read(path: str) -> list[Beginning]:
    """Reads a file: a text, or JSON in a file whose name ends in ``.json`` or ``.jsonl``.

    Raises:
        WrongArgument: there is no such file, or it cannot be read.
        BeginningError: says what is wrong, with the line.
    """
    require_file("FILE", path)
    raw = Path(path).read_bytes()
    if len(raw) > _MOST_BYTES:
        raise BeginningError(f"{path}: expected at most {_MOST_BYTES >> 20} MiB, found more")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BeginningError(f"{path}: expected UTF-8, found {error.reason}") from None
    if path.endswith(".json"):
        return [_from_json(path, text)]
    if path.endswith(".jsonl"):
        return list(_lines(path, text))
    return [_text(path, text)]


def _lines(path: str, text: str) -> Iterator[Beginning]:
    lines = [(at, line) for at, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise BeginningError(f"{path}: expected an object a line, found an empty file")
    for at, line in lines:
        yield _from_json(f"{path}:{at}", line)


def _from_json(name: str, text: str) -> Beginning:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BeginningError(f"{name}: expected JSON: {error}") from None
    if isinstance(given, str):
        return _text(name, given)
    if isinstance(given, list):
        key = "messages" if given and isinstance(given[0], dict) else "prompt_token_ids"
        given = {key: given}
    if not isinstance(given, dict):
        raise BeginningError(f"{name}: expected {_FORMS}, found {type(given).__name__}")
    found = [key for key in ("prompt", "prompt_token_ids", "messages") if key in given]
    others = sorted(set(given) - {*found, *(_CHAT_KEYS if "messages" in found else ())})
    if len(found) != 1 or others:
        said = ", ".join(sorted(given)[:8]) or "nothing"
        raise BeginningError(f"{name}: expected {_FORMS}, found an object with {said}")
    if "prompt" in given:
        return _text(name, given["prompt"])
    if "messages" in given:
        chat = {key: given[key] for key in _CHAT_KEYS if key in given}
        return Beginning(name, messages=_messages(name, given["messages"]), chat=chat)
    return Beginning(name, tokens=_tokens(name, given["prompt_token_ids"]))


def _text(name: str, text: Any) -> Beginning:
    if not isinstance(text, str) or not text:
        found = "an empty one" if text == "" else type(text).__name__
        raise BeginningError(f"{name}: expected a text, found {found}")
    return Beginning(name, text=text)


def _tokens(name: str, tokens: Any) -> tuple[int, ...]:
    good = isinstance(tokens, list) and bool(tokens)
    if not good or any(type(token) is not int or not 0 <= token < 1 << 31 for token in tokens):
        raise BeginningError(
            f"{name}: expected a list of token ids, whole numbers from 0 on, found another"
        )
    return tuple(tokens)


def _messages(name: str, messages: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(messages, list) or not messages:
        raise BeginningError(f"{name}: expected a list of messages, found an empty one or none")
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BeginningError(f"{name}: message {at}: expected an object with a role")
        _require_text(f"{name}: message {at}", message.get("content"))
    last = messages[-1]
    if last["role"] in GOES_ON and not last.get("content"):
        raise BeginningError(f"{name}: expected words in the last message, found none")
    return tuple(messages)


def _require_text(name: str, content: Any) -> None:
    parts: Sequence[Any] = content if isinstance(content, list) else ()
    kinds = {part.get("type") if isinstance(part, dict) else type(part).__name__ for part in parts}
    read = content is None or isinstance(content, str | list)
    if read and kinds <= {"text"} and all(isinstance(part.get("text"), str) for part in parts):
        return
    found = ", ".join(sorted(map(str, kinds))) or type(content).__name__
    raise BeginningError(
        f"{name}: expected text alone, found {found}: send a prompt with images once by a client"
    )


GOES_ON = ("user", "tool")
"""The roles whose message may go on when it is the last one."""
