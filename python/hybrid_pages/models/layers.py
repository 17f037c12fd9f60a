"""The caches of one layer on one tensor-parallel rank: keys and values of tokens, or a state.

The shapes of states restate ``MambaStateShapeCalculator``, and their types
``MambaStateDtypeCalculator`` (``vllm/model_executor/layers/mamba/mamba_utils.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hybrid_pages.models.config import RanksError

Export = Literal["always", "flashinfer", "flashkda", "never"]
"""Which of vLLM's kernels for a kind of layer export states from inside a step: all of them,
FlashInfer's, FlashKDA's, or none."""


@dataclass(frozen=True)
class Attention:
    """Keys and values, or latents, of one layer on one rank."""

    heads: int
    """The number of heads of keys and values."""
    elements: int
    """The number of elements of a token in one head, keys and values together."""
    element_bytes: int
    window: int | None = None
    """How many tokens a position sees, the present one included; None for all."""
    latent: bool = False
    """Whether there is one vector for all heads, the same on every rank (MLA)."""

    @property
    def token_bytes(self) -> int:
        """The bytes that a token takes."""
        return self.heads * self.elements * self.element_bytes

    @property
    def kind(self) -> str:
        """The kind of attention, in words."""
        if self.window is not None:
            return f"sliding window of {self.window:,} tokens"
        return "latent attention" if self.latent else "full attention"


@dataclass(frozen=True)
class RecurrentState:
    """The recurrent state of one layer on one rank."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    element_bytes: tuple[int, ...]
    """The size of an element, for each shape."""
    export: Export = "never"

    @property
    def nbytes(self) -> int:
        """The bytes that the state takes."""
        return sum(
            math.prod(shape) * element
            for shape, element in zip(self.shapes, self.element_bytes, strict=True)
        )


Layer = Attention | RecurrentState
PerLayer = list[list[Layer]]
"""What each layer of a model keeps, in order: nothing (as one of experts, or one that shares
another's pages), keys and values, a state, or both."""


def divided(what: str, number: int, ranks: int) -> int:
    """One rank's part of a number.

    what: its name, for the error.

    Raises:
        RanksError: the number cannot be divided among the ranks.
    """
    if number % ranks:
        raise RanksError(
            f"--tp: expected a divisor of {what}, which is {number}, found {ranks}: vLLM starts "
            "with none other"
        )
    return number // ranks


def gated_delta_net(
    ranks: int,
    *,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
    kernel: int,
    conv_bytes: int,
    state_bytes: int,
) -> RecurrentState:
    """Gated DeltaNet: ``gated_delta_net_state_shape``."""
    conv = divided(
        "the convolution's width", 2 * key_heads * key_width + value_heads * value_width, ranks
    )
    heads = divided("linear_num_value_heads", value_heads, ranks)
    return RecurrentState(
        "Gated DeltaNet",
        ((kernel - 1, conv), (heads, value_width, key_width)),
        (conv_bytes, state_bytes),
        "flashinfer",
    )


def kimi_delta_attention(
    ranks: int, *, heads: int, width: int, kernel: int, conv_bytes: int, state_bytes: int
) -> RecurrentState:
    """Kimi Delta Attention: ``kda_state_shape``."""
    own = divided("the heads of Kimi Delta Attention", heads, ranks)
    return RecurrentState(
        "Kimi Delta Attention",
        ((kernel - 1, 3 * own * width), (own, width, width)),
        (conv_bytes, state_bytes),
        "flashkda",
    )


def linear_attention(ranks: int, *, heads: int, width: int, state_bytes: int) -> RecurrentState:
    """Lightning attention: ``linear_attention_state_shape``."""
    return RecurrentState(
        "lightning attention",
        ((divided("num_attention_heads", heads, ranks), width, width),),
        (state_bytes,),
    )


def mamba1(
    ranks: int, *, inner: int, states: int, kernel: int, conv_bytes: int, state_bytes: int
) -> RecurrentState:
    """Mamba-1: ``mamba1_state_shape``."""
    own = divided("mamba_expand * hidden_size", inner, ranks)
    return RecurrentState("Mamba-1", ((kernel - 1, own), (own, states)), (conv_bytes, state_bytes))


def mamba2(
    ranks: int,
    *,
    inner: int,
    groups: int,
    heads: int,
    width: int,
    states: int,
    kernel: int,
    conv_bytes: int,
    state_bytes: int,
) -> RecurrentState:
    """Mamba-2: ``mamba2_state_shape``. A single group is repeated on the ranks
    (``extra_groups_for_head_shards``); of several, each rank has its part (``mamba_mixer2.py``)."""
    groups = ranks if groups == 1 else ranks * divided("the groups of Mamba-2", groups, ranks)
    conv = divided("the convolution's width", inner + 2 * groups * states, ranks)
    own = divided("the heads of Mamba-2", heads, ranks)
    return RecurrentState(
        "Mamba-2", ((kernel - 1, conv), (own, width, states)), (conv_bytes, state_bytes), "always"
    )


def short_convolution(ranks: int, *, width: int, kernel: int, conv_bytes: int) -> RecurrentState:
    """Short convolutions: ``short_conv_state_shape``."""
    return RecurrentState(
        "short convolution",
        ((kernel - 1, divided("the convolution's width", width, ranks)),),
        (conv_bytes,),
    )
