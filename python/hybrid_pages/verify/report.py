"""The report: one object, which JSON, Markdown and the terminal show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybrid_pages.text import finite
from hybrid_pages.verify.answers import Difference
from hybrid_pages.verify.runs import LOCAL, Runs
from hybrid_pages.verify.verdict import DIFFERS, EQUAL, NOTHING, VerdictRow, VerifyVerdict, scores

_HEAD = ("prompt", "tokens", "local hit", "restored from", "tokens", "compared with", "difference")
_MOST_ROWS = 40
_STYLES = {EQUAL: "green", DIFFERS: "bold red", NOTHING: "yellow"}


def report(runs: Runs, verdict: VerifyVerdict, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as one object, in which differences that are not finite are None.

    about: the model, flags, versions and options of the run.
    """
    noise = verdict.noise
    return {
        "good": verdict.good,
        **about,
        "vllm": runs.facts["vllm"],
        "platform": runs.facts["platform"],
        "block_tokens": runs.facts["block_tokens"],
        "tiers": list(runs.facts["tiers"]),
        "noise": {
            "cold": finite(noise.cold),
            "local_hit": finite(noise.local),
            "cold_to_local_hit": finite(noise.steps),
        },
        "prompts": [
            {
                "name": prompt.name,
                "tokens": len(prompt.tokens),
                "answer_tokens": prompt.answer_tokens,
                "local_hit_tokens": runs.phase(LOCAL)[index].cached,
                "tiers": {
                    row.tier: _row(row, len(prompt.tokens))
                    for row in verdict.rows
                    if row.prompt == index and not row.behind
                },
                "rest_of_answer": {
                    row.tier: {
                        "prompt_tokens": len(prompt.tokens) + row.behind,
                        **_row(row, len(prompt.tokens) + row.behind),
                    }
                    for row in verdict.rows
                    if row.prompt == index and row.behind
                },
            }
            for index, prompt in enumerate(runs.prompts)
        ],
        "scores": {
            "questions": sum(prompt.wanted is not None for prompt in runs.prompts),
            "right": scores(runs),
        },
        "problems": list(verdict.problems),
        "notes": list(runs.facts["notes"]),
    }


def _row(row: VerdictRow, prompt_tokens: int) -> dict[str, Any]:
    return {
        "restored_tokens": row.restored,
        "verdict": row.verdict,
        "compared_with": row.against,
        "limit": finite(row.limit),
        "difference": finite(row.distance),
        "first_difference": _difference(row.difference, prompt_tokens),
    }


def _difference(found: Difference | None, prompt_tokens: int) -> dict[str, Any] | None:
    if found is None:
        return None

    def side(token: tuple[int, str, float | None, float | None]) -> dict[str, Any]:
        number, text, own, restored = token
        return {
            "token": number,
            "text": text,
            "logprob": finite(own),
            "restored_logprob": finite(restored),
        }

    return {
        "position": prompt_tokens + found.position,
        "answer_position": found.position,
        "own": side(found.expected),
        "restored": side(found.found),
    }


def as_json(found: Mapping[str, Any]) -> str:
    """The report in JSON that any parser reads."""
    return json.dumps(found, indent=1, allow_nan=False)


# ---- in words


def _each(found: Mapping[str, Any]) -> Iterator[tuple[str, int, int, str, Mapping[str, Any]]]:
    """For each comparison: a name, tokens of the prompt, those of vLLM's own hit, tier and row."""
    for prompt in found["prompts"]:
        for tier, row in prompt["tiers"].items():
            yield prompt["name"], prompt["tokens"], prompt["local_hit_tokens"], tier, row
        for tier, row in prompt["rest_of_answer"].items():
            yield f"{prompt['name']}, half answered", row["prompt_tokens"], 0, tier, row


def _rows(found: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """Cells of the table, and the verdict of each row."""
    rows: list[tuple[tuple[str, ...], str]] = []
    for name, tokens, local, tier, row in _each(found):
        cells = (
            name,
            f"{tokens:,}",
            f"{local:,}",
            tier,
            f"{row['restored_tokens']:,}",
            row["compared_with"] or "-",
            _number(row["difference"]) if row["compared_with"] else "-",
        )
        rows.append((cells, row["verdict"]))
    return rows


def _table(found: Mapping[str, Any]) -> tuple[list[tuple[tuple[str, ...], str]], str]:
    """The rows to show, and a line that counts those left out: equal ones, where rows are many."""
    rows = _rows(found)
    room = _MOST_ROWS - sum(verdict != EQUAL for _, verdict in rows)
    shown = []
    for row in rows:
        if row[1] == EQUAL:
            room -= 1
            if room < 0:
                continue
        shown.append(row)
    left = len(rows) - len(shown)
    return shown, f"And {left:,} rows more that are equal: see --json." if left else ""


def _number(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.3g}"


def _facts(found: Mapping[str, Any]) -> list[str]:
    plant = f", planted fault: {found['plant']}" if found["plant"] else ""
    return [
        f"vLLM {found['vllm']} on {found['platform']}, hybrid-pages {found['hybrid_pages']}, "
        f"blocks of {found['block_tokens']:,} tokens, tiers: {', '.join(found['tiers'])}{plant}",
    ]


def _noise(found: Mapping[str, Any]) -> list[str]:
    noise = found["noise"]
    return [
        f"Noise, the largest difference of log-probabilities: two cold runs "
        f"{_number(noise['cold'])}, two runs on vLLM's own hit {_number(noise['local_hit'])}; "
        f"cold against vLLM's own hit, whose steps differ, {_number(noise['cold_to_local_hit'])}."
    ]


def _differences(found: Mapping[str, Any]) -> list[str]:
    """A line for the first prompt of each tier that differs most clearly."""
    lines = []
    for tier in found["tiers"]:
        for name, _, _, of_tier, row in _each(found):
            at = row["first_difference"]
            if of_tier != tier or row["verdict"] != DIFFERS or at is None:
                continue
            own, restored, against = at["own"], at["restored"], row["compared_with"]
            if own["token"] == restored["token"]:
                what = f"{against} and restored both have {_token(own)}"
            else:
                what = f"{against} has {_token(own)}, restored has {_token(restored)}"
            lines.append(
                f"First difference, {tier}, {name}: at token {at['position']} (answer "
                f"token {at['answer_position']}) {what}."
            )
            break
    return lines


def _token(side: Mapping[str, Any]) -> str:
    text = f" {side['text']!r}" if side["text"] else ""

    def said(value: float | None) -> str:
        return "not among the likely ones" if value is None else f"{value:.6g}"

    return (
        f"{side['token']}{text} (log-probability {said(side['logprob'])}, restored "
        f"{said(side['restored_logprob'])})"
    )


def _scores(found: Mapping[str, Any]) -> list[str]:
    scores = found["scores"]
    if not scores["questions"]:
        return []
    count = scores["questions"]
    each = ", ".join(
        f"{phase} {right} ({right / count:.1%})" for phase, right in scores["right"].items()
    )
    return [f"Right answers of {count} question{'s' if count != 1 else ''}: {each}."]


def _ending(found: Mapping[str, Any]) -> str:
    if not found["good"]:
        plant = found["plant"]
        return f"NOT VERIFIED: the planted fault {plant} shows." if plant else "NOT VERIFIED."
    if found["plant"]:
        return f"The planted fault {found['plant']} DID NOT SHOW: this comparison can't see it."
    rows = [(row, local) for _, _, local, _, row in _each(found)]
    restored = [row for row, _ in rows if row["restored_tokens"]]
    missed = sum(own > 0 for row, own in rows if not row["restored_tokens"])
    short = len(rows) - len(restored) - missed
    how = (
        "equal, bit for bit"
        if all(row["verdict"] == EQUAL for row in restored)
        else "equal but for the engine's own noise"
    )
    parts = [f"{short} had nothing to restore"] if short else []
    parts += [f"{missed} were not found, though vLLM's own cache had them"] if missed else []
    rest = f" ({'; '.join(parts)})" if parts else ""
    return f"Verified: {len(restored)} restored answers, {how}{rest}."


def markdown(found: Mapping[str, Any]) -> str:
    """The report for people, in Markdown."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows, rest = _table(found)
    table = [line((*_HEAD, "verdict")), line(("---",) * (len(_HEAD) + 1))]
    table += [line((*cells, verdict)) for cells, verdict in rows]
    parts = [
        f"# hybrid-pages verify {found['model']}",
        f"**{_ending(found)}**",
        *_facts(found),
        f"Flags: `{found['flags']}`" if found["flags"] else "",
        "\n".join(table),
        rest,
        *_noise(found),
        *_differences(found),
        *_scores(found),
        *_listed("Problems", found["problems"]),
        *_listed("Notes", found["notes"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _listed(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


def show(found: Mapping[str, Any], console: Console) -> None:
    """The report on a terminal."""
    for line in _facts(found):
        console.print(Text(line))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _HEAD:
        table.add_column(name, justify="right" if name in ("tokens", "local hit") else "left")
    table.add_column("verdict")
    rows, rest = _table(found)
    for cells, verdict in rows:
        table.add_row(*map(Text, cells), Text(verdict, style=_STYLES.get(verdict, "")))
    console.print(table)
    if rest:
        console.print(Text(rest))
    for line in (*_noise(found), *_differences(found), *_scores(found)):
        console.print(Text(line))
    for note in found["notes"]:
        console.print(Text(f"note: {note}", style="dim"))
    for problem in found["problems"]:
        console.print(Text(f"PROBLEM {problem}", style="bold red"))
    console.print(Text(_ending(found), style="bold green" if found["good"] else "bold red"))
