"""The results of ``hybrid-pages warm``, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hybrid_pages.text import count
from hybrid_pages.warm.visit import Visit


@dataclass(frozen=True)
class Row:
    """One beginning: what became of it, or why nothing did."""

    name: str
    visit: Visit | None = None
    trouble: str = ""

    @property
    def good(self) -> bool:
        """Whether prompts go on from its end, as far as is known."""
        return self.visit is not None and self.visit.whole


def as_json(url: str, model: str, rows: Sequence[Row], notes: Sequence[str]) -> dict[str, Any]:
    """The report as an object."""
    found = []
    for row in rows:
        said = {"trouble": row.trouble} if row.visit is None else asdict(row.visit)
        found.append({"name": row.name, "good": row.good, **said})
    return {"url": url, "model": model, "beginnings": found, "notes": list(notes)}


def line(row: Row, block_tokens: int | None) -> str:
    """What is said of one beginning."""
    visit = row.visit
    if visit is None:
        return row.trouble if row.trouble.startswith(row.name) else f"{row.name}: {row.trouble}"
    tokens = count(visit.tokens, "token")
    if visit.saves is None:
        return f"{row.name}: {tokens}, sent in {visit.seconds:.1f} s"
    if not visit.whole:
        why = f": this engine resumes at whole blocks of {block_tokens}" if block_tokens else ""
        fits = block_tokens and visit.saves == visit.tokens // block_tokens * block_tokens
        if not fits:
            why = ": nothing of the rest was kept, `hybrid-pages doctor --url` may say why"
        return f"{row.name}: {tokens}, saves {visit.saves:,} only{why}"
    if visit.was_warm:
        return f"{row.name}: {tokens}, was warm, saves {visit.saves:,}"
    return f"{row.name}: {tokens}, warmed in {visit.seconds:.1f} s, saves {visit.saves:,}"
