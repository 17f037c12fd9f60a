"""A ``vllm serve`` command line, read without vLLM: the few options that the rules look at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hybrid_pages.arguments import WrongArgument

_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
}
_CONNECTOR = "HybridPagesConnector"


@dataclass(frozen=True)
class Command:
    """The options by vLLM's names, and the environment variables set before the command."""

    model: str | None
    options: dict[str, str | bool]
    environment: dict[str, str]
    transfer: dict[str, Any] | None
    """``--kv-transfer-config``."""

    def text(self, name: str, default: str = "") -> str:
        """An option as it stands there."""
        found = self.options.get(name, default)
        return found if isinstance(found, str) else default

    def number(self, name: str, default: int | None = None) -> int | None:
        """A number of tokens or ranks; ``1k`` and ``1K`` as vLLM reads them.

        Raises:
            WrongArgument: it is none.
        """
        found = self.options.get(name)
        if found is None:
            return default
        text = str(found)
        scales = {"k": 10**3, "m": 10**6, "K": 1 << 10, "M": 1 << 20}
        scale = scales.get(text[-1:], 1)
        try:
            return int(float(text[:-1] if scale > 1 else text) * scale)
        except ValueError:
            raise WrongArgument(f"--{name}: expected a number, found {text!r}") from None

    def is_on(self, name: str) -> bool | None:
        """A switch; None if nobody said it."""
        if f"no-{name}" in self.options:
            return False
        found = self.options.get(name)
        return None if found is None else str(found).lower() not in ("false", "0")

    def connectors(self) -> list[dict[str, Any]]:
        """The outermost connector, or the children of a MultiConnector."""
        if self.transfer is None:
            return []
        if self.transfer.get("kv_connector") != "MultiConnector":
            return [self.transfer]
        extra = self.transfer.get("kv_connector_extra_config")
        children = extra.get("connectors") if isinstance(extra, dict) else None
        return [it for it in children or () if isinstance(it, dict)]

    def ours(self) -> dict[str, Any] | None:
        """Our connector's entry."""
        return next((it for it in self.connectors() if it.get("kv_connector") == _CONNECTOR), None)


def read_command(words: Sequence[str]) -> Command:
    """Reads ``[NAME=VALUE...] [python -m ...|vllm serve] [MODEL] [OPTIONS...]``.

    Options of a ``--config`` file count as if they stood first, as in vLLM.

    Raises:
        WrongArgument: a --kv-transfer-config that is no JSON object, a --config file that can't be
            read, or no command at all.
    """
    rest, environment = list(words), {}
    if rest[:1] == ["env"]:
        rest.pop(0)
    while rest and "=" in rest[0] and not rest[0].startswith("-"):
        name, _, value = rest.pop(0).partition("=")
        environment[name] = value
    if "serve" in rest:
        rest = rest[rest.index("serve") + 1 :]
    elif rest[:1] and not rest[0].startswith("-") and "-m" in rest:
        rest = rest[rest.index("-m") + 2 :]
    if not rest:
        raise WrongArgument("expected a command such as `vllm serve MODEL ...`, found none")
    model, options = None, dict[str, str | bool]()
    nested: dict[str, Any] = {}
    rest = _configured(rest) + rest
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            model = model or word
            continue
        name, equals, value = word.partition("=")
        name = _SHORT.get(name, name.lstrip("-").replace("_", "-"))
        given: str | bool = value if equals else True
        if not equals and rest and not (rest[0].startswith("-") and not _is_number(rest[0])):
            given = rest.pop(0)
        if name.startswith("kv-transfer-config."):
            _put(nested, word.partition("=")[0].lstrip("-").split(".")[1:], given)
        else:
            options[name] = given
    if model is None and isinstance(options.get("model"), str):
        model = str(options["model"])
    return Command(model, options, environment, _transfer(options, nested))


def _configured(words: Sequence[str]) -> list[str]:
    """The options of the ``--config`` file that is named, each as one word."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--config":
            return list(_options_of(Path(value if equals else following)))
    return []


def _options_of(path: Path) -> Iterator[str]:
    expected = "--config: expected a YAML file of options"
    if path.suffix not in (".yaml", ".yml"):
        raise WrongArgument(f"{expected}, .yaml or .yml, found {str(path)!r}")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise WrongArgument(f"{expected}, found {str(path)!r}: {error}") from None
    if not isinstance(found, dict):
        raise WrongArgument(f"{expected}, found {type(found).__name__} in {str(path)!r}")
    for key, value in found.items():
        if isinstance(value, bool):
            yield f"--{key}" if value else f"--no-{key}"
        elif isinstance(value, dict):
            yield f"--{key}={json.dumps(value)}"
        elif isinstance(value, list):
            yield f"--{key}={' '.join(map(str, value))}"
        else:
            yield f"--{key}={value}"


def _is_number(word: str) -> bool:
    return word.removeprefix("-").replace(".", "", 1).isdigit()


def _put(values: dict[str, Any], path: Sequence[str], given: str | bool) -> None:
    for step in path[:-1]:
        values = values.setdefault(step, {})
    try:
        values[path[-1]] = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        values[path[-1]] = given


def _transfer(options: dict[str, str | bool], nested: dict[str, Any]) -> dict[str, Any] | None:
    found = options.get("kv-transfer-config")
    if found is None:
        return nested or None
    try:
        values = json.loads(found) if isinstance(found, str) else None
    except ValueError as error:
        raise WrongArgument(
            f"--kv-transfer-config: expected JSON, found {found!r} ({error}): put it into single "
            "quotes"
        ) from None
    if not isinstance(values, dict):
        raise WrongArgument(f"--kv-transfer-config: expected a JSON object, found {found!r}")
    return {**values, **nested}
