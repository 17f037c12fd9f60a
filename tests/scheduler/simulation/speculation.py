"""Speculative decoding of a simulated model: its layers, its configuration, and its drafts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vllm.config import SpeculativeConfig, VllmConfig
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as Kind
from vllm.v1.kv_cache_interface import CircularBufferSpec, KVCacheSpec, MambaSpec

from .function import VOCABULARY, Prefix, key_of, next_token
from .shapes import Shape, bf16

METHODS = ("ngram", "mtp", "eagle3", "draft_model")
"""One of each kind: no draft layers; some in a group of the target's; some in no group that vLLM
recognises; a model of its own."""
UNKNOWN = -1
"""A draft that the scheduler only keeps room for."""


@dataclass(frozen=True)
class Speculation:
    """A method and how many drafts a step verifies, at most."""

    method: str
    drafts: int

    def __str__(self) -> str:
        return f"{self.method}-{self.drafts}"

    @property
    def lookahead(self) -> int:
        """Tokens behind a position that its K/V in draft layers depends on."""
        return int(self.method in ("mtp", "eagle3"))

    @property
    def layers(self) -> int:
        return {"ngram": 0, "draft_model": 2}.get(self.method, 1)

    def shape(self, shape: Shape) -> Shape:
        """The target's layers, whose states have room for drafts, and draft layers behind them."""

        def wide(make: Callable[[], KVCacheSpec]) -> Callable[[], KVCacheSpec]:
            return lambda: widened(make(), self.drafts)

        others = (MambaSpec, CircularBufferSpec)
        kept = [make for make in shape.layers if not isinstance(make(), others)]
        pages = [make for make in kept if make().tokens_per_state == 1]
        return replace(
            shape,
            layers=tuple(map(wide, shape.layers)),
            draft_layers=(pages[-1],) * self.layers,
            drafts=self.drafts,
        )

    def configure(self, config: VllmConfig) -> None:
        """Sets the speculative configuration. That of ngram needs no model to read; the others
        differ from it by what the method's name decides."""
        found = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=self.drafts,
            prompt_lookup_max=3,
            target_model_config=config.model_config,
            target_parallel_config=config.parallel_config,
        )
        found = copy.copy(found)
        object.__setattr__(found, "method", self.method)
        object.__setattr__(found, "draft_model_config", None)
        if hasattr(found, "disable_lookahead_block_hashes"):  # vLLM 0.33, which does so beside
            object.__setattr__(found, "disable_lookahead_block_hashes", True)  # any connector
        config.speculative_config = found

    def propose(self, prefix: Prefix, *, padded: bool) -> list[int]:
        """Drafts of the tokens behind a prefix: three of five are right, and none behind a wrong
        one. All ranks propose the same. ngram finds fewer now and then, or none.

        padded: as the second runner reports them, with room for those that are missing.
        """
        digest = prefix.after(len(prefix))
        count = self.drafts
        if self.method == "ngram":
            count = key_of("count", digest) % (self.drafts + 1)
        path, drafts = prefix.copy(), []
        for i in range(count):
            token = next_token(path.after(len(path)))
            if key_of("draft", digest, i) % 5 >= 3:
                token = (token + 1) % VOCABULARY
            path.append(token)
            drafts.append(token)
        return drafts + [UNKNOWN] * (self.drafts - count) * padded


def conv_axis(spec: MambaSpec) -> int:
    """Which axis of a convolution state counts the inputs that it remembers."""
    return int(spec.mamba_type == Kind.MAMBA1)


def is_conv(spec: MambaSpec, index: int) -> bool:
    """Whether a state is a convolution's: those of these shapes have 16 bits."""
    return bool(spec.dtypes[index] == bf16)


def widened(spec: KVCacheSpec, drafts: int) -> Any:
    """A recurrent layer that verifies drafts: a scratch block for each, and convolution states that
    remember as many inputs more. Fewer channels, so that they fit in a page of the same size.
    A ring has room for the drafts behind the tokens that are not yet compressed."""
    if isinstance(spec, CircularBufferSpec):
        room = 1 << (spec.block_size + drafts - 1).bit_length()
        return replace(spec, block_size=room, head_size=spec.head_size * spec.block_size // room)
    if not isinstance(spec, MambaSpec):
        return spec
    axis, shapes = conv_axis(spec), list(spec.shapes)
    for index, shape in enumerate(shapes):
        if is_conv(spec, index):
            width, channels = shape[axis] + drafts, shape[1 - axis]
            channels = max(2, channels * shape[axis] // width)
            shapes[index] = (width, channels) if axis == 0 else (channels, width)
    return replace(spec, shapes=tuple(shapes), num_speculative_blocks=drafts)


def flag_draft_groups(config: VllmConfig, groups: list[Any], specs: dict[str, KVCacheSpec]) -> None:
    """As `get_kv_cache_groups` of all workers does in vLLM 0.33: the specs say which are drafts."""
    found = config.speculative_config
    if found is None or not found.use_eagle_block_drop():
        return
    drafts = {name for name, spec in specs.items() if getattr(spec, "is_draft", False)}
    if drafts:
        for group in groups:
            group.is_eagle_group = not drafts.isdisjoint(group.layer_names)
