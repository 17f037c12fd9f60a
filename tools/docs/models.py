"""The tables of sizes in `docs/models/*.md`, from `hybrid-pages plan`: a test compares them.

A page has a line ``<!-- sizes: NAME, NAME -->``, which names files of `docs/models/configs/`, and a
line ``<!-- end -->``; what stands between them is written here.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hybrid_pages.models.config import Config, RanksError
from hybrid_pages.plan.facts import facts
from hybrid_pages.plan.report import size

MODELS = Path(__file__).parents[2] / "docs" / "models"
_TABLE = re.compile(r"(<!-- sizes: ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_DEFAULTS = dict(
    tp=1,
    pp=1,
    nodes=1,
    dtype="auto",
    kv_dtype="auto",
    ssm_dtype="auto",
    drafts=None,
    device="cuda",
    block_size=None,
    exports=False,
    host_gb=64.0,
    disk_gb=None,
    conversation=16384,
    turns=8,
    active_params=None,
    tflops=None,
    gb_per_s=None,
)
_LONG = 131072


def planned(name: str, **changes: Any) -> dict[str, Any]:
    """What `plan` says of a file in `configs/`."""
    file = MODELS / "configs" / f"{name}.json"
    return facts(Config.read(file), SimpleNamespace(**_DEFAULTS | {"model": name} | changes))


def column(name: str) -> dict[str, str]:
    """What a model's column shows, by row."""
    plan = planned(name)
    n, states = plan["block_tokens"], plan["states"]
    kept = {row["mode"]: row["conversations"]["host"] for row in plan["modes"]}
    (long,) = (row for row in plan["memory"] if row["tokens"] == _LONG)
    quantised = planned(name, kv_dtype="fp8")
    rows = {
        "layers": ", ".join(f"{row['count']} {row['kind']}" for row in plan["layers"]),
        "block, N": f"{n:,} tokens",
        "`--max-num-batched-tokens`, at least": f"{2 * n - 1:,}",
        "bytes per token": size(plan["bytes_per_token"]),
        "page": size(plan["page_bytes"]),
        "checkpoint": size(plan["checkpoint_bytes"]) if states else "none",
        "states are made": states["made"] if states else "no states",
        "64 GiB hold, with a checkpoint at every boundary": (
            f"{plan['capacity']['host']['dense_tokens']:,} tokens"
        ),
        "64 GiB hold, of conversations of 16k tokens": (
            f"{kept['adaptive, all turns']:,} with a checkpoint at each turn, "
            f"{kept['adaptive, last turn']:,} with the last one"
            if states
            else f"{kept['any']:,}"
        ),
        "one context of 128k tokens": (
            f"{size(long['bytes'])}, "
            f"{long['bytes'] / long['full_attention_bytes']:.0%} of full attention in every layer"
        ),
        "with `--kv-cache-dtype fp8`": (
            f"N = {quantised['block_tokens']:,}, {size(quantised['bytes_per_token'])} per token"
        ),
    }
    other = states and states["alternative"]
    if other:
        rows[f"with {other['kernels']}"] = f"N = {other['block_tokens']:,}"
    smaller = planned(name, ssm_dtype="bfloat16")
    if smaller["checkpoint_bytes"] < plan["checkpoint_bytes"]:
        rows["with `--mamba-ssm-cache-dtype bfloat16`"] = (
            f"N = {smaller['block_tokens']:,}, checkpoints of {size(smaller['checkpoint_bytes'])}"
        )
    rows["with [two pipeline stages](../vllm.md#pipeline-parallelism)"] = staged(name)
    return rows


def staged(name: str) -> str:
    """What two pipeline stages change."""
    try:
        plan = planned(name, pp=2)
    except RanksError:
        return "vLLM has none for this family"
    zeros = [f"{size(nbytes)} of a {what}" for what, nbytes in plan["zero_bytes"].items() if nbytes]
    layers = " + ".join(map(str, plan["stages"]))
    return f"{layers} layers, {' and '.join(zeros) or 'no bytes'} are zeros"


def table(names: list[str]) -> str:
    """A column for each model."""
    columns = [column(name) for name in names]
    rows = list(dict.fromkeys(row for each in columns for row in each))
    lines = [
        "| | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    lines += [
        "| " + " | ".join([row, *(each.get(row, "the same") for each in columns)]) + " |"
        for row in rows
    ]
    return "\n".join(lines)


def current(page: str) -> str:
    """A page with its tables as they should be."""

    def fill(found: re.Match[str]) -> str:
        names = [name.strip() for name in found[2].split(",")]
        return f"{found[1]}\n{table(names)}\n\n{found[3]}"

    return _TABLE.sub(fill, page)


def main() -> None:
    """Writes all tables."""
    for page in MODELS.glob("*.md"):
        page.write_text(current(page.read_text()))


if __name__ == "__main__":
    main()
