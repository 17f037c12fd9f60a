"""A remote store on the command line: the link to it, and what crossed it."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from hybrid_pages._core import Link, ReplayRow, Trace
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import WrongArgument
from hybrid_pages.lab.budgets import amount
from hybrid_pages.lab.model import Model
from hybrid_pages.text import columns

TOKEN_BYTES = 64 << 10
"""Keys and values of a token: Qwen3.6-27B's in bfloat16, 16 attention layers of 4 KiB."""

COMPUTE = 7_000
"""Prompt tokens a second: an estimate, not a measurement, see docs/replay.md."""

_SECONDS = {"us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}
_BYTES = {
    "MB/s": Decimal(10**6),
    "GB/s": Decimal(10**9),
    "MiB/s": Decimal(1 << 20),
    "GiB/s": Decimal(1 << 30),
    "Gbit/s": Decimal(10**9) / 8,
}
_NUMBER = r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*"


@dataclass(frozen=True)
class RemoteWay:
    """Latency in seconds and bandwidth in bytes per second, as given."""

    label: str
    latency: float
    bandwidth: float


def way(text: str) -> RemoteWay:
    """A latency and a bandwidth such as 20ms,1GB/s.

    Raises:
        WrongArgument: for anything else.
    """
    latency, bandwidth = "|".join(_SECONDS), "|".join(_BYTES)
    match = re.fullmatch(rf"{_NUMBER}({latency})\s*,\s*{_NUMBER}({bandwidth})", text, re.ASCII)
    if match is None or not Decimal(match[3]):
        raise WrongArgument(
            "expected a latency and a bandwidth above 0 such as 20ms,1GB/s; a latency in "
            f"{', '.join(_SECONDS)}, a bandwidth in {', '.join(_BYTES)}; "
            f"found {reprlib.repr(text)}"
        )
    seconds = float(Decimal(match[1]) * _SECONDS[match[2]])
    return RemoteWay(text, seconds, float(Decimal(match[3]) * _BYTES[match[4]]))


def check(args: SimpleNamespace) -> None:
    """Rejects sizes that nothing would use.

    Raises:
        SettingsError: for one of them.
    """
    if args.token_bytes is not None and args.model is not None:
        raise SettingsError("--token-bytes with --model: the model says how large a token is")


def link(
    way: RemoteWay, args: SimpleNamespace, model: Model | None, block_tokens: int, ratio: int
) -> Link:
    """The link to the store, with the costs of blocks of so many tokens."""
    page = page_bytes(args, model, block_tokens)
    return Link(
        latency=way.latency,
        bandwidth=way.bandwidth,
        page_bytes=page,
        checkpoint_bytes=ratio * page if model is None else model.checkpoint_bytes,
        tokens_per_second=args.compute or COMPUTE,
    )


def assumed(args: SimpleNamespace, model: Model | None) -> list[str]:
    """The figures that no option gives and that are assumed, in words."""
    words = []
    if model is None and args.token_bytes is None:
        words.append(f"{amount(TOKEN_BYTES)} per token (--model, --token-bytes)")
    if args.compute is None:
        words.append(f"{COMPUTE:,} tokens a second (--compute)")
    return words


def page_bytes(args: SimpleNamespace, model: Model | None, block_tokens: int) -> int:
    """Bytes of the page of a block."""
    if model is None:
        return (args.token_bytes or TOKEN_BYTES) * block_tokens
    return model.page_bytes(block_tokens)


def objects(row: ReplayRow, link: Link, block_tokens: int) -> dict[str, Any]:
    """The fields about the store in a row's JSON object; null for a bound."""
    real = row.remote_admit is not None
    return {
        "remote_admit": row.remote_admit,
        "remote_break_even_tokens": link.break_even(block_tokens),
        "remote_page_bytes": link.page_bytes,
        "remote_checkpoint_bytes": link.checkpoint_bytes,
        "remote_tokens_per_second": link.tokens_per_second,
        "remote_hit_tokens": row.remote_hit_tokens if real else None,
        "remote_slow_tokens": row.remote_slow_tokens if real else None,
        "remote_up_bytes": row.remote_up_bytes if real else None,
        "remote_down_bytes": row.remote_down_bytes if real else None,
        "remote_saved_seconds": row.remote_saved_seconds if real else None,
    }


def report(
    rows: Sequence[Sequence[ReplayRow]],
    labels: Sequence[str],
    link: Link,
    way: RemoteWay,
    trace: Trace,
    assumed: Sequence[str],
) -> list[str]:
    """Lines about what went up to the store and down from it, for below the table of hit rates."""
    tokens = link.break_even(trace.block_tokens)
    at = (
        "none: every prefix is faster to compute than to fetch"
        if tokens is None
        else f"{tokens:,} tokens; a shorter prefix is faster to compute than to fetch"
    )
    lines = [
        "",
        f"with a remote store below, {way.label}; {amount(link.page_bytes)} per page, "
        f"{amount(link.checkpoint_bytes)} per checkpoint, "
        f"{link.tokens_per_second:,.0f} tokens computed a second",
        *([f"assumed: {', '.join(assumed)}"] if assumed else []),
        f"break-even: {at}",
    ]
    seconds = trace.input_tokens / link.tokens_per_second
    for title, cell in (
        ("tokens fetched", lambda row: f"{row.remote_hit_tokens:,}"),
        ("not worth it", lambda row: f"{row.remote_slow_tokens:,}"),
        ("uploaded", lambda row: amount(row.remote_up_bytes)),
        ("downloaded", lambda row: amount(row.remote_down_bytes)),
        ("seconds saved", lambda row: f"{row.remote_saved_seconds:,.0f}"),
    ):
        body = [[name(each[0]), *map(cell, each)] for each in rows if each[0].remote_admit]
        lines += ["", *columns([[title, *labels], *body])]
    lines += [
        "",
        f"not worth it: faster to compute; auto computes them, all fetches them. To compute all "
        f"prompts takes {seconds:,.0f} seconds",
    ]
    return lines


def name(row: ReplayRow) -> str:
    """The name of a row: its policy, and how it uses the store."""
    return row.policy if row.remote_admit is None else f"{row.policy}, {row.remote_admit}"
