"""Hybrid models as vLLM lays their caches: all groups over each other in one buffer."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from hybrid_pages import (
    Arena,
    Completion,
    CudaEngine,
    Geometry,
    Group,
    HostEngine,
    Layer,
    LayerMap,
    Segment,
    checksum,
)

ITEM = {"bfloat16": 2, "float32": 4, "uint8": 1}
State = tuple[str, tuple[int, ...], str]
WAYS = {
    "copies": {"kernel_below": 0},
    "staged": {"kernel_below": 1 << 40},
    "kernel": {"kernel_below": 1 << 40, "staging": 0},
}
"""Options of a `CudaEngine` with which all bytes go one way."""


@dataclass(frozen=True)
class Model:
    """The sizes that decide the shapes of a hybrid model's cache on one rank.

    States are (name, shape, dtype) of one recurrent layer. `tokens` is vLLM's block size: attention
    pages of that many tokens are at least as large as a state, which is padded to them.
    """

    tokens: int
    kv_heads: int
    head: int
    attention_layers: int
    recurrent_layers: int
    states: tuple[State, ...]

    @property
    def page(self) -> int:
        return self.tokens * self.kv_heads * 2 * self.head * ITEM["bfloat16"]

    @property
    def state(self) -> int:
        return sum(prod(shape) * ITEM[dtype] for _, shape, dtype in self.states)

    @property
    def recurrent_groups(self) -> list[int]:
        """Layers of each: as many as there are attention layers, the rest in the last one."""
        whole, rest = divmod(self.recurrent_layers, self.attention_layers)
        return [self.attention_layers] * whole + [rest] * bool(rest)

    def geometry(self) -> Geometry:
        kv = Segment("kv", "bfloat16", (self.kv_heads, self.tokens, 2 * self.head))
        states = [Segment(name, dtype, shape) for name, shape, dtype in self.states]
        groups = [Group("attention", [Layer(f"a{i}", [kv]) for i in range(self.attention_layers)])]
        for group, layers in enumerate(self.recurrent_groups):
            names = [f"r{group}.{i}" for i in range(layers)]
            groups.append(Group("recurrent", [Layer(name, states) for name in names]))
        return Geometry(block_tokens=self.tokens, groups=groups, identity={})

    def shrunk(self, by: int) -> Model:
        """The same with fewer tokens and smaller states, for machines that only pretend."""

        def less(shape: tuple[int, ...]) -> tuple[int, ...]:
            longest = shape.index(max(shape))
            return (*shape[:longest], -(-shape[longest] // by), *shape[longest + 1 :])

        states = tuple((name, less(shape), dtype) for name, shape, dtype in self.states)
        return Model(
            -(-self.tokens // by),
            self.kv_heads,
            self.head,
            min(self.attention_layers, 3),
            min(self.recurrent_layers, 8),
            states,
        )


# Shapes by the models' configurations (config.json of each), block sizes by vLLM's rule
# (vllm/model_executor/models/config.py): the fewest tokens, a multiple of 16, whose page holds a
# state.
MODELS = {
    "Qwen3.6-27B": Model(
        784,
        4,
        256,
        16,
        48,
        (("conv", (3, 10240), "bfloat16"), ("ssm", (48, 128, 128), "float32")),
    ),
    "Qwen3.5-0.8B": Model(
        544, 2, 256, 6, 18, (("conv", (3, 6144), "bfloat16"), ("ssm", (16, 128, 128), "float32"))
    ),
    "Qwen3-Next-80B": Model(
        1056,
        2,
        256,
        12,
        36,
        (("conv", (3, 8192), "bfloat16"), ("ssm", (32, 128, 128), "float32")),
    ),
    "Nemotron-H-8B": Model(
        1040,
        8,
        128,
        4,
        24,
        (("conv", (3, 10240), "bfloat16"), ("ssm", (128, 64, 128), "float32")),
    ),
    "LFM2-1.2B": Model(16, 8, 64, 6, 10, (("conv", (2, 2048), "bfloat16"),)),
}


@dataclass
class Caches:
    """A model's buffer at an address: layer after layer, in each of them block after block."""

    model: Model
    address: int
    num_blocks: int = 7
    maps: list[LayerMap] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.model
        assert model.state <= model.page
        groups = [
            (model.attention_layers, model.page),
            *((n, model.state) for n in model.recurrent_groups),
        ]
        for group, (layers, nbytes) in enumerate(groups):
            for layer in range(layers):
                start = layer * self.num_blocks * model.page
                self.maps.append(
                    LayerMap(
                        group=group,
                        layer=layer,
                        address=self.address + start,
                        nbytes=self.nbytes - start,
                        block_stride=model.page,
                        runs=[(0, nbytes)],
                    )
                )

    @property
    def nbytes(self) -> int:
        return self.model.attention_layers * self.num_blocks * self.model.page

    def view(self, content: np.ndarray) -> np.ndarray:
        """``[layers, blocks, bytes]``."""
        return content.reshape(self.model.attention_layers, self.num_blocks, self.model.page)

    def payload(self, content: np.ndarray, blocks: list[int]) -> np.ndarray:
        """The bytes of an entry: a page of one block, or a checkpoint of a block a group."""
        layers = self.view(content)
        if len(blocks) == 1:
            return layers[:, blocks[0]].reshape(-1)
        parts = zip(self.model.recurrent_groups, blocks, strict=True)
        state = self.model.state
        return np.concatenate([layers[:n, block, :state].reshape(-1) for n, block in parts])

    def with_entry(self, content: np.ndarray, other: np.ndarray, blocks: list[int]) -> np.ndarray:
        """`content` with an entry's bytes taken from `other`."""
        content = content.copy()
        to, of = self.view(content), self.view(other)
        if len(blocks) == 1:
            to[:, blocks[0]] = of[:, blocks[0]]
        else:
            state = self.model.state
            for n, block in zip(self.model.recurrent_groups, blocks, strict=True):
                to[:n, block, :state] = of[:n, block, :state]
        return content


def finish(engine: CudaEngine | HostEngine, ticket: int) -> Completion:
    assert engine.wait(ticket, 120), "a transfer has not ended in two minutes"
    (done,) = engine.poll()
    assert done.ok, done.error
    return done


def check_round_trip(memory, model: Model, **options) -> None:
    """Store, wipe, load: the arena, the checksums and every byte of the buffer are as they must be.

    `memory` has `allocate`, `read` and `write`.
    """
    blocks = len(model.recurrent_groups) + 3
    address = memory.allocate(model.attention_layers * blocks * model.page)
    caches = Caches(model, address, num_blocks=blocks)
    before = np.random.default_rng(0).integers(0, 256, caches.nbytes, np.uint8)
    memory.write(address, before)
    geometry = model.geometry()
    slot_bytes = geometry.suggest_slot_bytes()
    entries = [(0, [1]), (0, [blocks - 1]), (1, list(range(2, 2 + len(model.recurrent_groups))))]
    needs = [geometry.slots_per_entry(item, slot_bytes) for item, _ in entries]
    arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=sum(needs) + 3)
    order = np.random.default_rng(1).permutation(arena.slots).tolist()
    slots = [[order.pop() for _ in range(need)] for need in needs]
    engine = CudaEngine(geometry, arena, rank=0, num_blocks=blocks, layers=caches.maps, **options)
    stored = finish(
        engine,
        engine.store([(c, s, b) for (c, b), s in zip(entries, slots, strict=True)]),
    )
    payloads = [caches.payload(before, chosen) for _, chosen in entries]
    assert stored.bytes == sum(payload.nbytes for payload in payloads)
    assert stored.checksums == [checksum(payload.tobytes()) for payload in payloads]
    for payload, places in zip(payloads, slots, strict=True):
        held = b"".join(arena.read(slot) for slot in places)
        assert held[: payload.nbytes] == payload.tobytes()
    assert np.array_equal(memory.read(address, caches.nbytes), before)

    wiped = np.full_like(before, 0x5A)
    memory.write(address, wiped)
    load = [
        (c, s, b, total) for (c, b), s, total in zip(entries, slots, stored.checksums, strict=True)
    ]
    loaded = finish(engine, engine.load(load))
    assert (loaded.bytes, loaded.checksums) == (stored.bytes, [])
    expected = wiped
    for _, chosen in entries:
        expected = caches.with_entry(expected, before, chosen)
    # Padding and all other blocks are as they were.
    assert np.array_equal(memory.read(address, caches.nbytes), expected)
    engine.close()
