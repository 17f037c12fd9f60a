"""Reads an engine's metrics endpoint, in Prometheus' text format."""

from __future__ import annotations

import http.client
import json
import math
import re
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hybrid_pages import HybridPagesError
from hybrid_pages.reply import read

PREFIX = "vllm:hybrid_pages_"
"""The names of hybrid-pages' metrics begin with this."""
_ENGINE = "vllm:"

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_SECONDS = 10.0


class ScrapeError(HybridPagesError, OSError):
    """A metrics endpoint cannot be read."""


@dataclass(frozen=True)
class Sample:
    """One value of a metric, with its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Samples:
    """All values that an endpoint served at one moment."""

    by_name: Mapping[str, list[Sample]] = field(default_factory=dict)

    def sum(self, name: str, **labels: str) -> float:
        """The sum over all samples of a metric with these labels; 0 for none."""
        return sum(sample.value for sample in self.all(name, **labels))

    def all(self, name: str, **labels: str) -> list[Sample]:
        """The samples of a metric with these labels. A counter's name may lack ``_total``."""
        found = self.by_name.get(name) or self.by_name.get(f"{name}_total") or []
        return [
            sample
            for sample in found
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]

    def ours(self, name: str, **labels: str) -> float:
        """The sum of a metric of hybrid-pages; its name lacks :data:`PREFIX`."""
        return self.sum(PREFIX + name, **labels)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric of hybrid-pages, by the values of a label."""
        found: dict[str, float] = {}
        for sample in self.all(PREFIX + name):
            key = sample.labels.get(label, "")
            found[key] = found.get(key, 0.0) + sample.value
        return found

    def has_ours(self) -> bool:
        """Whether there are metrics of hybrid-pages."""
        return any(name.startswith(PREFIX) for name in self.by_name)


def parse(text: str) -> Samples:
    """Reads Prometheus' text format. Lines that do not follow it are left out."""
    found: dict[str, list[Sample]] = {}
    for sample in _samples(text):
        found.setdefault(sample.name, []).append(sample)
    return Samples(found)


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or line.startswith("#"):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not math.isnan(value):
            labels = {key: _unescaped(text) for key, text in _LABEL.findall(match[2] or "")}
            yield Sample(match[1], labels, value)


def _unescaped(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPED[match[0]], text)


def base_of(url: str) -> str:
    """A server's address with ``http://`` in front, without ``/metrics``, ``/v1`` or a slash at the
    end."""
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    for ending in ("/metrics", "/v1"):
        url = url.removesuffix(ending).rstrip("/")
    return url


def scrape(url: str, seconds: float | None = None) -> Samples:
    """Reads a server's metrics, within 10 seconds or less.

    Raises:
        ScrapeError: the server cannot be reached, or does not serve vLLM's metrics.
    """
    address = f"{base_of(url)}/metrics"
    samples = parse(get(address, seconds))
    if not samples.by_name:
        raise ScrapeError(
            f"{address}: expected metrics, found a text without any: name the address that "
            "`vllm serve` listens on"
        )
    if not any(name.startswith(_ENGINE) for name in samples.by_name):
        raise ScrapeError(
            f"{address}: expected vLLM's metrics, found those of another program: name the address "
            "that `vllm serve` listens on, and start it without --disable-log-stats"
        )
    return samples


def version_of(url: str, seconds: float | None = None) -> str | None:
    """The version of vLLM that a server reports within 10 seconds or less; None if it reports
    none."""
    try:
        said = json.loads(get(f"{base_of(url)}/version", seconds))
    except (ScrapeError, ValueError):
        return None
    return str(said["version"]) if isinstance(said, dict) and "version" in said else None


def get(address: str, seconds: float | None = None) -> str:
    """Reads the text at an address, within 10 seconds or less.

    Raises:
        ScrapeError: names the address and what to do.
    """
    if not address.startswith(("http://", "https://")):
        raise ScrapeError(
            f"{address}: expected an address that begins with http:// or https://: name the one "
            "that `vllm serve` listens on, such as http://localhost:8000"
        )
    try:
        body = read(address, _SECONDS if seconds is None else min(seconds, _SECONDS))
    except urllib.error.HTTPError as error:
        fix = "name the address that `vllm serve` listens on"
        if error.code in (401, 403, 407):
            fix += " itself, whose metrics need no key"
        raise ScrapeError(
            f"{address}: expected metrics, found status {error.code}: {fix}"
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ScrapeError(
            f"{address}: cannot be read ({reason}): start the engine, or name the address that "
            "`vllm serve` listens on"
        ) from None
    return body.decode("utf-8", "replace")
