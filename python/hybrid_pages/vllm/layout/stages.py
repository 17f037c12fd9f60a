"""Pipeline stages: each one's workers have the layers of their stage, and no others.

All ranks have one geometry, so that an entry has the same slots in every plane. A group has as many
layers there as the stage with the most of them, counted for each size. A stage that has fewer
leaves the others out: their bytes are zeros.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hybrid_pages import GeometryError, Layer, LayerMap, Segment
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.versions import logger

Exchange = Callable[[str], list[str]]
"""Gives a text to the workers of all pipeline stages, and returns theirs in the order of stages."""

_FAILED = "failed: "


@contextmanager
def together(exchange: Exchange) -> Iterator[Exchange]:
    """Gives what is inside an exchange, to be used once. If a stage fails before it, the others do
    not wait: it fails in them, too.

    Raises:
        UnsupportedError: another stage has failed; says which one and why.
    """
    told = False

    def tell(text: str) -> list[str]:
        nonlocal told
        told = True
        texts = exchange(text)
        for stage, found in enumerate(texts):
            if found.startswith(_FAILED):
                raise UnsupportedError(f"pipeline stage {stage} {found}")
        return texts

    try:
        yield tell
    except Exception as error:
        if not told:
            try:
                exchange(f"{_FAILED}{error}")
            except Exception:
                logger.exception("the other pipeline stages were not told of an error")
        raise


@dataclass(frozen=True)
class Stage:
    """What the workers of one stage have."""

    layers: Sequence[Sequence[Layer]]
    """The layers in this stage, by group of the geometry."""
    identity: Mapping[str, str]
    """What their bytes depend on besides shapes."""

    def to_json(self) -> str:
        """A text that other stages can read."""
        return json.dumps({"layers": self.plain_layers, "identity": dict(self.identity)})

    @property
    def plain_layers(self) -> list[Any]:
        """The layers as names and numbers."""
        return [
            [
                [layer.name, [[each.name, each.dtype, each.shape] for each in layer.segments]]
                for layer in group
            ]
            for group in self.layers
        ]

    @classmethod
    def from_json(cls, text: str) -> "Stage":
        """The stage that wrote a text."""
        found = json.loads(text)
        layers = [
            [Layer(name, [Segment(*each) for each in segments]) for name, segments in group]
            for group in found["layers"]
        ]
        return cls(layers, found["identity"])


class Stages:
    """All stages of an engine, in order.

    Raises:
        GeometryError: stages with different groups, or a group without layers in all of them.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = list(stages)
        counts = [len(stage.layers) for stage in self._stages]
        if len(set(counts)) != 1:
            raise GeometryError(
                f"pipeline stages: expected the same groups in each, found {counts} groups"
            )
        self.layers = [self._joined(group) for group in range(counts[0])]
        """The layers of all ranks' entries, by group."""

    @classmethod
    def of(cls, own: Stage | None, count: int, exchange: Exchange | None) -> "Stages | None":
        """The stages of an engine, of which this worker knows its own.

        Args:
            own: this worker's; None if a size is not known.
            count: how many stages there are.
            exchange: reaches the other stages; None in a process that cannot.

        Returns:
            None if a size is not known in some stage, or another stage cannot be reached.
        """
        if count == 1:
            return None if own is None else cls([own])
        if exchange is None:
            return None
        texts = exchange("" if own is None else own.to_json())
        return cls([Stage.from_json(text) for text in texts]) if all(texts) else None

    @property
    def identity(self) -> dict[str, str]:
        """What the bytes depend on besides shapes, and which layers are in which stage."""
        if len(self._stages) == 1:
            return dict(self._stages[0].identity)
        identity = {}
        for key in self._stages[0].identity:
            values = [stage.identity[key] for stage in self._stages]
            identity[key] = values[0] if len(set(values)) == 1 else " | ".join(values)
        split = ", ".join(
            "+".join(str(len(stage.layers[group])) for stage in self._stages)
            for group in range(len(self.layers))
        )
        layers = json.dumps([stage.plain_layers for stage in self._stages])
        digest = hashlib.sha256(layers.encode()).hexdigest()
        identity["stages"] = f"{split} layers by group, {digest[:32]}"
        return identity

    def places(self, stage: int, group: int) -> list[int]:
        """The index among a group's layers of each one that a stage has."""
        if len(self._stages) == 1:
            return list(range(len(self.layers[group])))
        free: dict[int, list[int]] = {}
        for index, layer in enumerate(self.layers[group]):
            free.setdefault(layer.bytes, []).append(index)
        return [free[layer.bytes].pop(0) for layer in self._stages[stage].layers[group]]

    def elsewhere(self, stage: int) -> list[LayerMap]:
        """Maps for the layers that a stage does not have."""
        maps: list[LayerMap] = []
        for group, layers in enumerate(self.layers):
            here = set(self.places(stage, group))
            missing = (index for index in range(len(layers)) if index not in here)
            maps.extend(LayerMap.elsewhere(group=group, layer=index) for index in missing)
        return maps

    def _joined(self, group: int) -> list[Layer]:
        """The layers of a group: of each size as many as the stage that has the most."""
        of_stages = [stage.layers[group] for stage in self._stages]
        if len(of_stages) == 1:
            return list(of_stages[0])
        most: Counter[int] = Counter()
        joined: dict[int, list[Layer]] = {}
        for layers in of_stages:
            for size, count in Counter(layer.bytes for layer in layers).items():
                if count > most[size]:
                    most[size] = count
                    joined[size] = [layer for layer in layers if layer.bytes == size]
        if not joined:
            raise GeometryError(
                f"group {group}: expected layers in some pipeline stage, found none"
            )
        return [layer for size in sorted(joined) for layer in joined[size]]
