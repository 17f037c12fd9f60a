"""Steps that are too short: prompts that wait, or take several steps for each block.

Restates ``_mamba_block_aligned_split`` and ``schedule`` of ``vllm/v1/core/sched/scheduler.py``: a
step of a prompt ends at the end of a block of states. A prompt that cannot reach the next end
waits, unless a block is longer than what vLLM takes for the longest step: then the prompt goes on
in pieces, and still ends a step at each block.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybrid_pages.checks.situation import Finding, Situation


def step_sizes(it: Situation) -> Iterator[Finding]:
    """The rule about steps that are too short."""
    n = _block(it)
    if n is None:
        return
    if not it.cuts_prompts:
        yield Finding(
            "chunked-prefill",
            "start",
            "chunked prefill is off, and vLLM keeps no states without it",
            "drop --no-enable-chunked-prefill",
        )
        return
    room, whole = _room(it), it.max_scheduled_tokens or it.max_batched_tokens
    longest = _least(whole, it.long_prefill_tokens)
    if longest is not None and longest < n:
        yield Finding("step-below-block", "time", _in_pieces(it, n, room), _fix(it, n))
    elif room is not None and room < n:
        yield Finding(
            "step-below-block",
            "time",
            f"a step has room for {room} tokens of a prompt, and vLLM takes it for {longest}: it "
            f"waits for a whole block of {n}, and a longer prompt waits for ever",
            _fix(it, n),
        )
    elif room is not None and room < _ample(it, n):
        yield Finding(
            "step-below-two-blocks",
            "time",
            f"a step has room for {room} tokens: beside more than {room - n} of other requests, "
            f"drafts included, no prompt gets a whole block of {n}, and it waits until they end",
            _fix(it, n),
        )


def least_batched_tokens(it: Situation) -> int:
    """The least ``max_num_batched_tokens`` with which no prompt waits for a block; 0 for any."""
    n = _block(it)
    if n is None or 0 < it.long_prefill_tokens < n:
        return 0
    return it.draft_slots + _ample(it, n)


def _block(it: Situation) -> int | None:
    """Tokens of a block of states; None if there are none, or if unknown."""
    return (it.state_tokens or it.block_tokens) if it.has_states else None


def _room(it: Situation) -> int | None:
    """Tokens that a prompt can get in one step when it is alone."""
    batched = it.max_batched_tokens
    return _least(it.max_scheduled_tokens, batched and max(1, batched - it.draft_slots))


def _ample(it: Situation, n: int) -> int:
    """Room that leaves a prompt a whole block, whatever other requests take of a step."""
    if it.max_requests == 1:
        return n
    decoded = ((it.max_requests or 1) - 1) * (1 + it.drafts + it.draft_slots)
    return n + max(n - 1, decoded)


def _least(*values: int | None) -> int | None:
    """The least value of those that are known and not 0."""
    return min(filter(None, values), default=None)


def _in_pieces(it: Situation, n: int, room: int | None) -> str:
    piece = _least(room, it.long_prefill_tokens) or n
    steps, last = -(-n // piece), n % piece or piece
    alone = room is None or room >= n
    return (
        f"{'beside other requests a prompt gets' if alone else 'a step has room for'} {piece} "
        f"tokens{' of a step' if alone else ''}, less than a block of {n}: each block of a prompt "
        f"takes {steps} steps, the last one with {last} tokens. No hit is lost, and nothing waits"
    )


def _fix(it: Situation, n: int) -> str:
    """The options that make a step long enough for a whole block beside others."""
    least = max(2 * n - 1, _ample(it, n))
    longer = []
    if it.max_batched_tokens and it.max_batched_tokens - it.draft_slots < least:
        longer.append(f"--max-num-batched-tokens {least + it.draft_slots} or more")
    if it.max_scheduled_tokens and it.max_scheduled_tokens < least:
        longer.append(f"--max-num-scheduled-tokens {least} or more")
    if 0 < it.long_prefill_tokens < n:
        longer.append(f"--long-prefill-token-threshold {n} or more")
    return ", and ".join(longer)
