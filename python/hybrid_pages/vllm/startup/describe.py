"""Describes the connector in one line for the log: the geometry, and what the budget holds."""

from hybrid_pages import Geometry
from hybrid_pages.adapter.pool import Slots
from hybrid_pages.text import size
from hybrid_pages.vllm.layout.grid import BlockGrid
from hybrid_pages.vllm.metrics import KINDS
from hybrid_pages.vllm.processes.engine_cores import EngineCores
from hybrid_pages.vllm.processes.nodes import Nodes


def describe(
    geometry: Geometry,
    slots: Slots,
    grid: BlockGrid,
    *,
    cores: EngineCores,
    nodes: Nodes,
    host_gb: float,
) -> str:
    """A line with block size, groups, sizes and budget.

    Args:
        geometry: planned, or found in the tensors.
        slots: of the budget.
        grid: how vLLM cuts sequences into blocks, and whether kernels export states from inside a
            step.
        cores: the engine cores, each with a cache of its own.
        nodes: of each engine core.
        host_gb: the budget of each, as the user has set it.
    """
    sizes = dict.fromkeys(KINDS, 0)
    for item in geometry.classes:
        sizes[item.kind] += item.entry_bytes
    counts = {kind: sum(group.kind == kind for group in geometry.groups) for kind in KINDS}
    groups = " + ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    page, checkpoint = sizes["attention"] + sizes["window"], sizes["recurrent"]
    tokens = slots.nbytes // (page + checkpoint) * geometry.block_tokens
    engine_blocks = sorted({blocks.tokens for blocks in grid.groups})
    if len(engine_blocks) > 1:
        groups += f" (engine blocks of {' and '.join(map(str, engine_blocks))} tokens)"
    states = "at step ends"
    if grid.exports_states:
        states += " and exported from inside a prefill's last step"
    spread = nodes.command_lines
    which = cores.describe(host_gb / spread)
    which += "; " if which else ""
    shown = [size(each, ".4g") for each in (page, checkpoint, slots.nbytes, slots.slot_bytes)]
    return (
        f"hybrid-pages: {which}N={geometry.block_tokens} tokens per block, groups: {groups}, "
        f"{f'states: {states}, ' if counts['recurrent'] else ''}ranks: {geometry.ranks}"
        f"{f' on {spread} nodes' if spread > 1 else ''}, page "
        f"{shown[0]}, checkpoint {shown[1]}, host budget {shown[2]} = {slots.count} slots of "
        f"{shown[3]}, holds at least {tokens} tokens (with a checkpoint at every boundary)"
    )
