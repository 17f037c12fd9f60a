"""A ``vllm serve`` command line, read without vLLM: the few options that the rules look at."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hybrid_pages.adapter.encryption import shown
from hybrid_pages.arguments import WrongArgument

_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dpl": "data-parallel-size-local",
    "-n": "nnodes",
    "-sc": "speculative-config",
    "-ep": "enable-expert-parallel",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
}
_SWITCHES = {
    "aggregate-engine-logging",
    "allow-credentials",
    "allow-deprecated-quantization",
    "async-scheduling",
    "cohere-is-reasoning-model",
    "cudagraph-metrics",
    "data-parallel-external-lb",
    "data-parallel-hybrid-lb",
    "data-parallel-multi-port-external-lb",
    "dcp-q-replicate",
    "enforce-eager",
    "exclude-tools-when-tool-choice-none",
    "fail-on-environ-validation",
    "fully-sharded-loras",
    "grpc",
    "headless",
    "interleave-mm-strings",
    "jit-monitor-verbose",
    "kv-cache-metrics",
    "kv-sharing-fast-prefill",
    "language-model-only",
    "log-error-stack",
    "long-prefill-token-threshold-adaptive",
    "mm-device-do-normalize",
    "mm-encoder-only",
    "monokernel",
    "numa-bind",
    "ray-workers-use-nsight",
    "return-sampling-mask",
    "return-tokens-as-token-ids",
    "scheduler-reserve-full-isl",
    "skip-mm-profiling",
    "skip-tokenizer-init",
    "sleep-mode-offload-cudagraph",
    "specialize-active-lora",
    "swa-bounded-replay",
    "tokens-only",
    "trust-remote-code",
    "trust-request-chat-template",
    "trust-request-mm-kwargs",
    "use-fp64-gumbel",
    "use-replayssm",
    "use-tqdm-on-load",
}
"""Options without a value, besides those that begin with ``enable-``, ``disable-`` and ``no-``."""
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NO_SERVER = {"docker", "podman", "nerdctl", "vllm"}
"""First words of a command line in which the server is started by ``serve``, or by an image."""
_CONNECTOR = "HybridPagesConnector"
_DRAFTERS = ("ngram", "eagle3", "eagle", "dflash", "dspark", "medusa", "mtp")
"""Drafting methods that a model's name may contain."""


@dataclass(frozen=True)
class Command:
    """The options by vLLM's names, and the environment variables set before the command."""

    model: str | None
    options: dict[str, str | bool]
    environment: dict[str, str]
    transfer: dict[str, Any] | None
    """``--kv-transfer-config``."""
    speculative: dict[str, Any] = field(default_factory=dict)
    """``--speculative-config``."""

    def text(self, name: str, default: str = "") -> str:
        """The value of an option, as it was given."""
        found = self.options.get(name, default)
        return found if isinstance(found, str) else default

    def number(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        """A number of tokens or ranks; ``1k`` and ``1K`` as vLLM reads them.

        Raises:
            WrongArgument: it is no number, or less than ``least``.
        """
        found = self.options.get(name)
        if found in (None, "", "None"):
            return default
        text = str(found)
        match = re.fullmatch(r"(-?\d{1,18})([KMGT]?)|(\d{1,18}(?:\.\d{1,18})?)([kmgt])", text)
        if match is None:
            raise WrongArgument(f"--{name}: expected a number, found {text!r}")
        if match[4]:
            value = int(float(match[3]) * _SCALES[match[4]])
        else:
            value = int(match[1]) * _BINARY.get(match[2], 1)
        if value < least:
            raise WrongArgument(f"--{name}: expected a number from {least} on, found {text!r}")
        return value

    def is_on(self, name: str) -> bool | None:
        """Whether a switch is on; None if it was not given."""
        name, means = _switch(name)
        found = self.options.get(name)
        return None if found is None else (str(found).lower() not in ("false", "0")) == means

    def drafts(self) -> int:
        """The most tokens that a step guesses; 0 for none, or if it was not given.

        Raises:
            WrongArgument: a --speculative-config that is no JSON object.
        """
        given = self.number("spec-tokens", 0)
        found = self.speculative.get("num_speculative_tokens", given)
        return found if isinstance(found, int) else 0

    def draft_method(self) -> str:
        """The drafting method; if none was given, the one that vLLM finds from the name of the
        drafting model. Empty if unknown."""
        method = self.speculative.get("method") or self.text("spec-method")
        model = str(self.speculative.get("model") or self.text("spec-model")).lower()
        if method or not model:
            return str(method)
        return next((each for each in _DRAFTERS if each in model), "draft_model")

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

    The command may also be one word, as after ``bash -c``. Options of a ``--config`` file count as
    if they came first, as in vLLM.

    Raises:
        WrongArgument: a --kv-transfer-config or a --speculative-config that is no JSON object, a
            --config file that can't be read, or no command at all.
    """
    words = _unquoted(words)
    head, rest = _parted(words)
    environment = dict(
        (name, value) for name, equals, value in (word.partition("=") for word in head) if equals
    )
    if not rest:
        raise WrongArgument("expected a command such as `vllm serve MODEL ...`, found none")
    if Path(rest[0]).name in _NO_SERVER:
        raise WrongArgument(
            f"expected a command such as `vllm serve MODEL ...`, found {rest[0]!r} without "
            "`serve`: for an image that starts the server by itself, say `vllm serve` instead of "
            "everything up to the image's name"
        )
    if other := _another_program(words):
        raise WrongArgument(
            f"expected a command such as `vllm serve MODEL ...`, found {other!r}, which does not "
            "start vLLM's server: say `vllm serve` in its place"
        )
    options = dict[str, str | bool]()
    nested: dict[str, dict[str, Any]] = {}
    _read(_configured(rest), options, nested)
    configured = options.pop("model", None)
    named = _read(rest, options, nested)
    model = options.get("model") or named or configured
    return Command(
        model if isinstance(model, str) else None,
        options,
        environment,
        _object("kv-transfer-config", options, nested),
        _object("speculative-config", options, nested) or {},
    )


def _unquoted(words: Sequence[str]) -> list[str]:
    """The words of a command that is quoted as a whole, after the words before it."""
    for at, word in enumerate(words):
        if word in ("serve", "-m"):
            break
        try:
            inside = shlex.split(word.replace("\\\n", " "))
        except ValueError:
            continue
        if len(inside) > 1 and ("serve" in inside or "-m" in inside):
            return [*words[:at], *inside]
    return list(words)


def _another_program(words: Sequence[str]) -> str | None:
    """A program that is no server, as far as the command's words tell: images, scripts and modules
    that start vLLM's may have any name."""
    signs = ("serve", "--model", "--kv-transfer-config", "--kv_transfer_config")
    if any("vllm" in word.lower() or word.partition("=")[0] in signs for word in words):
        return None
    program = next(word for word in words if not _is_variable(word) and word != "env")
    return program if shutil.which(program) and not Path(program).is_dir() else None


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before the server's arguments, with environment variables, and the arguments."""
    start = 0
    if "serve" in words:
        start = words.index("serve") + 1
    elif words[:1] and not words[0].startswith("-") and "-m" in words:
        start = words.index("-m") + 2
    else:
        while start < len(words) and (_is_variable(words[start]) or words[start] == "env"):
            start += 1
    return [word for word in words[:start] if _is_variable(word)], words[start:]


def _is_variable(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None


def _read(
    words: Sequence[str], options: dict[str, str | bool], nested: dict[str, dict[str, Any]]
) -> str | None:
    """Adds the options; the last one counts. Returns the first word that belongs to none."""
    rest, first = list(words), None
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            first = first or word
            continue
        if re.match(r"-O.", word):  # -O3
            continue
        name, equals, value = word.partition("=")
        option, *path = _SHORT.get(name, name.lstrip("-")).split(".")
        option = option.replace("_", "-")
        given: str | bool = value if equals else True
        follows = rest and not (rest[0].startswith("-") and not _is_number(rest[0]))
        if not equals and follows and (path or not _is_switch(option)):
            given = rest.pop(0)
        if path:
            options.setdefault(option, True)
            _put(nested.setdefault(option, {}), path, given)
        elif _is_switch(option):
            option, means = _switch(option)
            options[option] = (str(given).lower() not in ("false", "0")) == means
        else:
            options[option] = given
    return first


def _is_switch(option: str) -> bool:
    return option in _SWITCHES or option.startswith(("enable-", "disable-", "no-"))


def _switch(option: str) -> tuple[str, bool]:
    """One name for a switch and its opposites, and whether it is on."""
    means = True
    if option.startswith("no-"):
        option, means = option.removeprefix("no-"), False
    if option.startswith("disable-"):
        option, means = f"enable-{option.removeprefix('disable-')}", not means
    return option, means


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
        inner = values.get(step)
        if not isinstance(inner, dict):
            inner = values[step] = {}
        values = inner
    try:
        values[path[-1]] = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        values[path[-1]] = given


def _object(
    name: str, options: dict[str, str | bool], nested: dict[str, dict[str, Any]]
) -> dict[str, Any] | None:
    """An option in JSON. If it has dotted forms, only those count, as in vLLM."""
    if name in nested:
        return nested[name]
    found = options.get(name)
    if found is None:
        return None
    said = shown(found, "encrypt_key" if "encrypt_key" in str(found) else name)
    try:
        values = json.loads(found) if isinstance(found, str) else None
    except (ValueError, RecursionError) as error:
        raise WrongArgument(
            f"--{name}: expected JSON, found {said} ({error}): put it into single quotes"
        ) from None
    if not isinstance(values, dict):
        raise WrongArgument(
            f"--{name}: expected a JSON object, found {'nothing' if found is True else said}"
        )
    return values
