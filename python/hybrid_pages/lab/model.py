"""Bytes of a model's pages and checkpoints, for budgets in bytes.

Sizes are for all tensor-parallel ranks together, without padding, in the types that vLLM's ``auto``
chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, ModelError, find
from hybrid_pages.models.families import layers_of
from hybrid_pages.models.layers import Attention, RecurrentState


@dataclass(frozen=True)
class Model:
    """The layers and sizes of one model's cache."""

    name: str
    dtype: str
    attention_layers: int
    recurrent_layers: int
    token_bytes: int
    """Keys and values of a token, in all attention layers."""
    checkpoint_bytes: int
    """Recurrent states after a boundary, in all recurrent layers."""

    def page_bytes(self, block_tokens: int) -> int:
        """Bytes of a page of so many tokens: budgets are counted in pages."""
        return self.token_bytes * block_tokens

    def exact_ratio(self, block_tokens: int) -> float:
        """How many pages take as many bytes as a checkpoint."""
        return self.checkpoint_bytes / self.page_bytes(block_tokens)

    def ratio(self, block_tokens: int) -> int:
        """The size of a checkpoint in whole pages, at least 1: the lab counts in pages."""
        return max(1, round(self.exact_ratio(block_tokens)))


def read_model(path: Path) -> Model:
    """Reads a model's folder, or its config.json under any name.

    Raises:
        ModelError: it can't be read, or is not one of the hybrid families that are known.
    """
    try:
        config = Config.read(find(str(path)))
        layers = layers_of(config, Choices())
        attention = [layer for layer in layers if isinstance(layer, Attention)]
        states = [layer for layer in layers if isinstance(layer, RecurrentState)]
        kinds = sorted({layer.kind for layer in layers})
        if not states or not attention or any(layer.window for layer in attention):
            raise config.error(
                "expected layers of full attention and recurrent ones, found "
                f"{', '.join(kinds) or 'none'}"
            )
        return Model(
            name=config.text("model_type", config.name),
            dtype=Choices().model_dtype(config),
            attention_layers=len(attention),
            recurrent_layers=len(states),
            token_bytes=sum(layer.token_bytes for layer in attention),
            checkpoint_bytes=sum(layer.nbytes for layer in states),
        )
    except ModelError as error:
        raise ModelError(f"{error}; for another model give --ratio") from error
