"""The figures in `benches/README.md`, from `benches/results/`: a test compares them.

The page has a line ``<!-- figures: NAME -->``, which names a file of results, and a line
``<!-- end -->``; what stands between them is written here. A file of results is a list of runs,
each with its date, machine, command and tables. Rows that are ``unshown`` stay in the file.

`README.md` begins with a part of the first table of ``resume``, between ``<!-- resume -->`` and
``<!-- end -->``; the first two rows of its results are from there, too.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

BENCHES = Path(__file__).parents[2] / "benches"
PAGE = BENCHES / "README.md"
FRONT = BENCHES.parent / "README.md"
RESULTS = BENCHES / "results"
_LINK = "([benches](benches/README.md#resumepy))"
_WORKLOADS = {"chats": "chat-200", "agents": "agent"}
_CACHES = {
    "hybrid-pages": "hybrid-pages",
    "vLLM's own offloading, `--prefix-match-unit 16`": "vLLM offloading, unit 16",
    "vLLM's own prefix cache": "vLLM alone",
}
_SECOND = "Time to first token of a second turn"
_RIVALS = "vLLM offloading", "vLLM offloading, unit 32"
"""What the front page shows of `resume`: workloads and caches, by their names there."""
_RESUME = re.compile(r"(<!-- resume -->\n).*?(<!-- end -->)", re.DOTALL)
_ROW = re.compile(r"^\| Prompt tokens that chats compute.*$", re.MULTILINE)
_SECOND_ROW = re.compile(rf"^\| {_SECOND}.*$", re.MULTILINE)
_FIGURES = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def named(page: str) -> list[str]:
    """The files of results that a page shows."""
    return [name for _, name, _ in _FIGURES.findall(page)]


def run(result: dict[str, Any]) -> str:
    """What a run found, below a paragraph that says where and how."""
    said = [result["date"], result["machine"]]
    if "versions" in result:
        said.append(result["versions"])
    if result["command"]:
        said.append(f"`{result['command']}`")
    text = ", ".join(said) + "."
    if "note" in result:
        text += f" {result['note']}"
    if "samples" in result:
        text += f" Every sample: [results/{result['samples']}](results/{result['samples']})."
    return "\n\n".join([_wrapped(text), *map(table, result["tables"])])


def table(found: dict[str, Any]) -> str:
    """One table, below its title."""
    columns = found["columns"]
    head, *rows = (f"| {' | '.join(cells)} |" for cells in (columns, *found["rows"]))
    text = "\n".join([head, "|---" * len(columns) + "|", *rows]).replace("|  |", "| |")
    return f"{_wrapped(found['title'])}\n\n{text}" if found["title"] else text


def _wrapped(text: str) -> str:
    # A command stays whole, as links and code do.
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, 120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def current(page: str) -> str:
    """A page with its figures as they should be."""

    def fill(found: re.Match[str]) -> str:
        runs = json.loads((RESULTS / f"{found[2]}.json").read_text())
        return "\n\n".join([f"{found[1]}", *map(run, runs), found[3]]).replace(
            "-->\n\n\n", "-->\n\n"
        )

    return _FIGURES.sub(fill, page)


def front(page: str) -> str:
    """The front page with its figures as they should be."""
    runs = json.loads((RESULTS / "resume.json").read_text())
    measured = runs[0]["tables"][0]
    found = {}
    for row in measured["rows"]:
        cells = dict(zip(measured["columns"], row, strict=True))
        if cells["memory"].replace(" ", "") == "100%":
            found[cells["workload"]] = cells
    rows = [
        [name, *(found[workload][column] for workload in _WORKLOADS.values())]
        for name, column in _CACHES.items()
    ]
    columns = ["prompt tokens computed, for each that nobody had computed before", *_WORKLOADS]
    shown = table({"title": "", "columns": columns, "rows": rows})
    (_, ours, _), (rival, theirs, _), *_ = rows
    said = f"Prompt tokens that chats compute, for each that nobody had computed before {_LINK}"
    page = _RESUME.sub(lambda it: f"{it[1]}\n{shown}\n\n{it[2]}", page)
    page = _ROW.sub(lambda _: f"| {said} | {ours} | {rival} | {theirs} | |", page)
    return _SECOND_ROW.sub(lambda _: _second(runs[1]["tables"][0]), page)


def _second(measured: dict[str, Any]) -> str:
    """The row of the front page on second turns: those of the longest prompts."""
    cells = dict(zip(measured["columns"], measured["rows"][-1], strict=True))
    ours, theirs, units = (cells[name] for name in ("hybrid-pages", *_RIVALS))
    said = f"{_SECOND} after {cells[measured['columns'][0]]} tokens and more, ms {_LINK}"
    rival = f"vLLM's own offloading (with `--prefix-match-unit 32`: {units})"
    ratio = f"{int(theirs) / int(ours):.1f} (vLLM's / ours)"
    return f"| {said} | {ours} | {rival} | {theirs} | {ratio} |"


def main() -> None:
    """Writes all figures."""
    PAGE.write_text(current(PAGE.read_text()))
    FRONT.write_text(front(FRONT.read_text()))


if __name__ == "__main__":
    main()
