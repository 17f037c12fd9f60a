"""How much a budget holds, from how many tokens restoring pays, and what a context takes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from hybrid_pages.models.blocks import CachePlan
from hybrid_pages.models.layers import Attention, RecurrentState

CONTEXTS = tuple(1 << power for power in range(12, 21))
"""4k to 1M tokens."""
_MOST_TOKENS = 1 << 30


@dataclass(frozen=True)
class Kept:
    """The checkpoints and bytes that one checkpoint mode keeps of a conversation.

    Where a step ends depends on the load, and which checkpoints stay depends on the policy. These
    are the two extremes: every turn's checkpoint stays, or only the last one's.
    """

    mode: str
    checkpoints: int
    nbytes: int
    """Bytes that one conversation takes; 0 where nothing could be resumed."""
    cost: str

    def conversations(self, budget: int) -> int:
        """How many conversations fit into a budget in bytes."""
        return budget // self.nbytes if self.nbytes else 0


def kept(plan: CachePlan, tokens: int, turns: int, drafts: int = 0) -> list[Kept]:
    """What each checkpoint mode keeps of conversations of so many tokens in so many turns.

    drafts: tokens that are guessed per step.
    """
    blocks = tokens // plan.block_tokens
    if not plan.checkpoint_bytes:
        nbytes = plan.kept_bytes(tokens)
        return [Kept("any", 0, nbytes, "the model has no states: modes make no difference")]
    per_turn = min(turns, blocks)
    inside = plan.whole_blocks_only(drafts) is None
    last = int(inside and tokens % plan.block_tokens > 0)
    ends, tails = (turns, turns - 1 + last) if inside else (per_turn, 0)

    def of(mode: str, checkpoints: int, tails: int, cost: str) -> Kept:
        nbytes = plan.kept_bytes(tokens, checkpoints, tails) if checkpoints else 0
        return Kept(mode, checkpoints, nbytes, cost)

    return [
        of("none", 0, 0, "nothing is ever restored"),
        of("align", per_turn, 0, "a fork that vLLM has forgotten is computed again each time"),
        of(
            "all",
            blocks + last,
            last,
            "no step more; a checkpoint wherever a step ends, at most these",
        ),
        of(
            "adaptive, all turns", ends, tails, "one step more where a prompt leaves a known prefix"
        ),
        of(
            "adaptive, last turn",
            min(1, ends),
            last,
            "the same; what is resumed last stays longest",
        ),
    ]


def dense_tokens(plan: CachePlan, budget: int) -> int:
    """Tokens that a budget holds with a checkpoint at every boundary, as in the connector's line at
    startup."""
    return budget // (plan.page_bytes + plan.checkpoint_bytes) * plan.block_tokens


def page_table_bytes(pinned: int) -> int:
    """Bytes of a GPU that its page tables take for so many bytes of pinned host memory: 8 for each
    4 KiB. vLLM does not count them."""
    return pinned // 4096 * 8


def full_attention_bytes(plan: CachePlan, tokens: int) -> int:
    """Bytes that a model would keep of so many tokens if each layer were full attention (or its
    widest attention, if it has no full one); without rounding to blocks."""
    attention = [layer for layer in plan.layers if isinstance(layer, Attention)]
    whole = [layer for layer in attention if layer.window is None] or attention
    widest = max(layer.token_bytes for layer in whole)
    mixers = len(plan.layers)
    if _both_in_each_layer(plan):
        mixers //= 2
    return plan.ranks * mixers * widest * tokens // plan.context


def _both_in_each_layer(plan: CachePlan) -> bool:
    """Whether states and pages come in pairs, as in Falcon-H1."""
    kinds = [isinstance(layer, RecurrentState) for layer in plan.layers]
    return len(kinds) > 1 and all(
        first and not second for first, second in zip(kinds[::2], kinds[1::2], strict=False)
    )


def break_even(
    plan: CachePlan,
    *,
    active_params: float,
    tflops: float,
    gb_per_s: float,
    drafts: int = 0,
) -> int | None:
    """The least tokens from which on a restore is faster than computing; None for never.

    A token costs ``2 * active_params`` operations (attention's own, which grow with the length, are
    left out, so the real length is shorter), and a restore costs what it copies: pages, of windows
    only those still seen, and one checkpoint.

    Args:
        plan: of the model.
        active_params: parameters that a token passes.
        tflops: what all ranks together reach in a prefill, in 1e12 operations per second.
        gb_per_s: from host memory to all ranks together, in 1e9 bytes per second.
        drafts: tokens that are guessed per step.
    """
    compute = 2 * active_params / (tflops * 1e12)
    n, inside = plan.block_tokens, plan.whole_blocks_only(drafts) is None

    def paying(blocks: int) -> float:
        """As many tokens take as long to compute as so many blocks to copy."""
        nbytes = plan.kept_bytes((blocks - inside) * n, tails=int(inside))
        return nbytes / (gb_per_s * 1e9) / compute

    def pays(blocks: int) -> bool:
        """Whether a restore of this many blocks always pays, however full the last one is."""
        return paying(blocks) < ((blocks - 1) * n + 1 if inside else blocks * n)

    # The cost of a token in a restore of whole blocks never grows with the length: once it pays, it
    # always does.
    most = max(1, _MOST_TOKENS // n)
    if not pays(most):
        return None
    first = 1 + bisect_left(range(1, most), True, key=pays)
    if not inside:
        return first * n
    least = (first - 1) * n + 1
    return least if first == 1 else min(least, int(paying(first - 1)) + 1)
