"""Where the scheduler ends steps of a prompt.

``Scheduler._mamba_block_aligned_split`` ends a step at ``Request.shared_prefix_boundary`` if it
lies ahead of what is computed, and reads it anew for each step. It counts whole blocks up to there:
``start + (boundary - start) // block * block``. A number whose difference to the start survives
that ends the step exactly there, also inside a block. All else that reads the boundary compares it,
or rounds it itself; it finds an ordinary number. Steps that begin inside a block are vLLM's own:
the next one ends at the block's end. (With ``enable_mamba_shared_prefix_checkpoint``, which needs
drafts, vLLM uses the boundary as it is.)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request


class _Tokens(int):
    """Tokens that a division into blocks and back leaves as they are."""

    __slots__ = ()

    def __floordiv__(self, block: int) -> "_Blocks":
        return _Blocks(self)


class _Blocks(int):
    """Tokens in place of the whole blocks among them."""

    __slots__ = ()

    def __mul__(self, block: int) -> int:
        return int(self)


class _Stop(int):
    """The end of a step, which may lie inside a block."""

    __slots__ = ()

    def __sub__(self, start: int) -> _Tokens:
        return _Tokens(int(self) - start)


def fork_of(request: "Request") -> int:
    """The end of a shared prefix, in tokens, where vLLM itself ends a step of a prompt; 0 if there
    is none."""
    return int(request.shared_prefix_boundary)


def end_step_at(request: "Request", tokens: int, *, inside: bool = False) -> None:
    """Asks the scheduler to end a step of a prompt after ``tokens``.

    inside: whether that may lie inside a block. Not with drafts.
    """
    request.shared_prefix_boundary = _Stop(tokens) if inside else tokens
