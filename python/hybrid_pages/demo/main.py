"""``hybrid-pages demo``: prefixes restored on a real vLLM engine, shown as one table."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

from hybrid_pages.cause import cause_of_error
from hybrid_pages.demo.cases import CaseRow, cases, continued, restarted, show
from hybrid_pages.demo.engine import DemoEngine
from hybrid_pages.demo.models import ensure
from hybrid_pages.demo.quiet import hushed, stage

_MIB = 1 << 20
_HEAD = (
    "prompt",
    "tokens",
    "cold TTFT",
    "restored TTFT",
    "speed-up",
    "tokens restored",
    "bytes moved",
    "max |dlogprob|",
    "verdict",
)


def run(args: SimpleNamespace) -> int:
    """Runs the demo. Exit status 1 when anything differs, nothing was restored, or the engine
    failed."""
    try:
        return _run(args)
    except Exception as error:
        traceback.print_exc()
        print(
            f"\nhybrid-pages demo: what went wrong first: {cause_of_error(error)}", file=sys.stderr
        )
        return 1


def _run(args: SimpleNamespace) -> int:
    with stage("making a tiny Qwen3.5 (once)"), hushed(verbose=args.verbose):
        model = ensure("qwen3.5")
    with stage("starting vLLM (15 to 60 s)"), hushed(verbose=args.verbose):
        engine = DemoEngine(model, args.host_gb)
    rows = []
    try:
        for case in cases(engine.block_tokens):
            with stage(f"  {case.name} ({len(case.prompt)} tokens)"), hushed(verbose=args.verbose):
                rows.append(show(engine, case, args.runs))
        with stage("  half an answer, continued"), hushed(verbose=args.verbose):
            rows.append(continued(engine, args.runs))
        memory, start_line = engine.gauges(), engine.half.connection.describe()
        failures = engine.failures()
    finally:
        with hushed(verbose=args.verbose):
            engine.shutdown()
    with (
        tempfile.TemporaryDirectory(prefix="hybrid-pages-demo-") as folder,
        stage("  starting vLLM twice on one disk"),
        hushed(verbose=args.verbose),
    ):
        rows.append(restarted(model, args.host_gb, Path(folder) / "disk", failures))
    good = all(row.equal for row in rows) and any(row.restored_tokens for row in rows)
    good = good and not failures
    if args.json:
        shown = [asdict(row) | {"equal": row.equal} for row in rows]
        print(
            json.dumps(
                {"good": good, "rows": shown, "memory": memory, "failures": failures}, indent=1
            )
        )
    else:
        print(_report(rows, memory, start_line, failures, good))
    return 0 if good else 1


def _report(
    rows: list[CaseRow],
    memory: dict[str, float],
    start_line: str,
    failures: dict[str, float],
    good: bool,
) -> str:
    table = [
        (
            row.name,
            str(row.prompt_tokens),
            f"{row.cold_ttft_ms:.1f} ms",
            f"{row.restored_ttft_ms:.1f} ms",
            f"{row.cold_ttft_ms / row.restored_ttft_ms:.1f} x",
            str(row.restored_tokens),
            f"{row.bytes_moved / _MIB:.2f} MiB",
            f"{row.max_delta_logprob:.3g}",
            _verdict(row),
        )
        for row in rows
    ]
    kinds = [
        (
            kind,
            f"{memory[f'resident_entries:{kind}']:.0f}",
            f"{memory[f'resident_bytes:{kind}'] / _MIB:.2f} MiB",
        )
        for kind in ("pages", "windows", "checkpoints")
    ]
    kinds.append(("free", "", f"{memory['free_bytes'] / _MIB:.2f} MiB"))
    lines = [
        "",
        start_line,
        "",
        *_aligned([_HEAD, *table]),
        "",
        "Restored: vLLM's own cache emptied, the prefix brought back from host memory; in the last",
        "row by another engine, from the disk that the first one left.",
        "The verdict compares it with vLLM's own prefix hit at the same boundary, bit for bit;",
        "what goes on from half an answer, inside a block, with the rest of the answer.",
        "",
        "In host memory before the restart:",
        *_aligned([("kind", "entries", "bytes"), *kinds]),
        "",
        *(f"failed: {name} {count:.0f}" for name, count in failures.items()),
        "Everything equal, bit for bit." if good else "NOT EQUAL: see the verdicts above.",
    ]
    return "\n".join(lines)


def _verdict(row: CaseRow) -> str:
    if row.equal:
        return "equal" if row.restored_tokens else "equal (nothing to restore)"
    if row.restored_tokens != row.expected_tokens:
        return f"WRONG: expected {row.expected_tokens} tokens restored"
    if row.reference_tokens != row.expected_tokens:
        return f"NOT COMPARED: vLLM's own hit was {row.reference_tokens} tokens deep"
    return "WRONG: other text" if row.max_delta_logprob == float("inf") else "WRONG: differs"


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, len(widths) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
