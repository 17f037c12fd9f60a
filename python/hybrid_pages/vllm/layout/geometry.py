"""Reads the geometry of vLLM's KV cache, and the places of its blocks in memory.

Two sources have to agree: the ``KVCacheConfig``, which vLLM has planned, and the tensors that it
has allocated and registered. The layouts are described in ``vllm/v1/kv_cache_interface.py``,
``KVCacheTensor`` and ``create_kv_cache_views``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hybrid_pages import Geometry, GeometryError, Group, Layer, LayerMap, Segment
from hybrid_pages.adapter.arrays import dtype_name
from hybrid_pages.adapter.strides import runs
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.speculation import draft_layers
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.layout.grid import BlockGrid, EntryBlocks, all_specs, block_grid
from hybrid_pages.vllm.layout.stages import Exchange, Stage, Stages
from hybrid_pages.vllm.layout.tokens import TokenPart, token_parts

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import (
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheSpec,
        KVCacheTensor,
        MambaSpec,
    )

_MAX_RUNS = 4096


def has_states(config: "KVCacheConfig") -> bool:
    """Whether there are recurrent layers."""
    return any(versions.kind_of(spec) == "recurrent" for spec in all_specs(config))


def require_groups(config: "KVCacheConfig") -> None:
    """Rejects kinds of KV cache that are not known to work.

    Raises:
        UnsupportedError: names the layer, its kind, and the accepted kinds.
    """
    for index, group in enumerate(config.kv_cache_groups):
        for name in group.layer_names:
            spec = versions.layer_spec(group, name)
            if group.host_resident or not group.enable_kv_transfer:
                raise UnsupportedError(
                    f"group {index}, layer {name!r}: {type(spec).__name__}: HiSparse, whose pages "
                    "lie in memory of its own"
                )
            if versions.is_scratch(spec):
                continue
            kind = versions.kind_of(spec)
            if kind == "recurrent":
                if spec.mamba_cache_mode != "align":
                    raise UnsupportedError(
                        f"layer {name!r}: mamba_cache_mode: expected 'align', found "
                        f"{spec.mamba_cache_mode!r} (pass --mamba-cache-mode align)"
                    )
            elif kind is not None:
                if (found := versions.page_format(spec)) not in versions.PAGE_FORMATS:
                    raise UnsupportedError(
                        f"layer {name!r}: KV cache format: expected one of "
                        f"{', '.join(versions.PAGE_FORMATS)}, found {found}"
                    )
                states = spec.tokens_per_state
                if not isinstance(states, int) or spec.block_size % states:
                    raise UnsupportedError(
                        f"layer {name!r}: tokens_per_state: expected a divisor of the block size "
                        f"{spec.block_size}, found {states}"
                    )
                if spec.prefix_replay_tokens:
                    raise UnsupportedError(
                        f"layer {name!r}: {type(spec).__name__}: expected pages that a hit can go "
                        f"on from, found {spec.prefix_replay_tokens} tokens that vLLM computes "
                        "again behind every hit (bounded replay)"
                    )
            else:
                raise UnsupportedError(
                    f"layer {name!r}: {type(spec).__name__}: expected full attention, MLA, sliding "
                    "window or a recurrent state"
                )


def layers_here(config: "KVCacheConfig") -> list[list[str]]:
    """The names of this worker's layers, by group of the geometry."""
    groups = config.kv_cache_groups
    kept = (group for group in groups if not versions.is_scratch(versions.group_spec(group)))
    return [list(group.layer_names) for group in kept]


def planned_geometry(
    config: "VllmConfig", kv_cache_config: "KVCacheConfig", exchange: Exchange | None = None
) -> Geometry | None:
    """The *planned geometry*: sizes of pages and checkpoints, from vLLM's plan without the tensors.

    The scheduler and the workers derive it separately, and the arena is made for it. The order of
    bytes inside a page is not in it: that is read from the tensors, see :func:`read_layout`.

    Args:
        config: the engine's configuration.
        kv_cache_config: vLLM's plan, with the layers of this worker's pipeline stage. The
            scheduler's has those of the first stage.
        exchange: reaches the workers of all pipeline stages, which all have to plan.

    Returns:
        None if there are several pipeline stages and no ``exchange``, or if the size of a layer is
        not known. For layers of one type and several sizes the
        scheduler's plan has only the spec of the first one
        (``generate_scheduler_kv_cache_config``). The size of a page then follows from its place in
        memory, unless pages are padded.

    Raises:
        UnsupportedError: a kind of cache that the connector does not handle.
    """
    require_groups(kv_cache_config)
    grid = block_grid(kv_cache_config, context=_context(config))
    strides = {
        name: min(tensor.layer_stride, tensor.block_stride)
        for tensor in kv_cache_config.kv_cache_tensors
        for name in tensor.layers
    }
    found: list[list[tuple[str, list[Segment] | None]]] = []
    for blocks in grid.groups:
        group = kv_cache_config.kv_cache_groups[blocks.table]
        found.append(
            [
                (name, _planned_segments(versions.layer_spec(group, name), strides.get(name, 0)))
                for name in group.layer_names
            ]
        )
    identity = {
        "model": str(config.model_config.model),
        "read_from": "the plan",
        "engine_block_tokens": _engine_blocks(grid),
    }
    layers = [
        [Layer(name, segments) for name, segments in group if segments is not None]
        for group in found
    ]
    known = all(segments is not None for group in found for _, segments in group)
    own = Stage(layers, identity) if known else None
    stages = Stages.of(own, versions.world_of(config.parallel_config)[0], exchange)
    return None if stages is None else _geometry(config, kv_cache_config, grid, stages)


def require_sizes(plan: Geometry, found: Geometry) -> None:
    """Rejects tensors whose pages or checkpoints are not as large as planned.

    Raises:
        GeometryError: names the first class that differs.
    """
    for planned, item in zip(plan.classes, found.classes, strict=True):
        if planned.entry_bytes != item.entry_bytes:
            raise GeometryError(
                f"class {item.index} ({item.kind}): expected {planned.entry_bytes} bytes per block "
                f"by vLLM's plan, found {item.entry_bytes} in its tensors"
            )


def read_layout(
    config: "VllmConfig",
    kv_cache_config: "KVCacheConfig",
    kv_caches: Mapping[str, torch.Tensor],
    *,
    hash_block_size: int | None = None,
    exchange: Exchange | None = None,
) -> tuple[Geometry, list[LayerMap]]:
    """The geometry of an engine and the places of its blocks in this process.

    Args:
        config: the engine's configuration; its identity goes into the fingerprint.
        kv_cache_config: vLLM's plan.
        kv_caches: the registered tensors by layer name: attention ``[blocks, heads, tokens, K|V]``,
            possibly in kernel blocks; recurrent ``[blocks, 1, 1, bytes]`` of int8.
        hash_block_size: how many tokens a prefix hash covers, if the plan does not tell.
        exchange: reaches the workers of all pipeline stages, which all have to read.

    Raises:
        GeometryError: a tensor does not match its spec; names the layer, expected and found.
        UnsupportedError: memory or a kind of cache that the connector does not handle.
    """
    require_groups(kv_cache_config)
    grid = block_grid(kv_cache_config, hash_block_size, context=_context(config))
    placements = {
        name: (tensor, index)
        for tensor in kv_cache_config.kv_cache_tensors
        for index, name in enumerate(tensor.layers)
    }
    views: list[list[_LayerView]] = []
    for blocks in grid.groups:
        group = kv_cache_config.kv_cache_groups[blocks.table]
        views.append([])
        for name in group.layer_names:
            spec = versions.layer_spec(group, name)
            view = _LayerView.of(name, spec, kv_caches, kv_cache_config.num_blocks)
            view.require_placement(*placements.get(name, (None, 0)))
            views[-1].append(view)
    kernels = [view.kernel_tokens for group in views for view in group]
    layers = [[Layer(view.name, view.segments()) for view in group] for group in views]
    own = Stage(layers, _identity(config, kv_cache_config, grid, kernels))
    count, tensor_ranks = versions.world_of(config.parallel_config)
    stage = config.parallel_config.rank // tensor_ranks if count > 1 else 0
    stages = Stages.of(own, count, exchange)
    if stages is None:
        raise GeometryError(f"pipeline stages: expected {count} that read their tensors, found one")
    maps = [
        view.map(config, group, place, blocks)
        for group, blocks in enumerate(grid.groups)
        for view, place in zip(views[group], stages.places(stage, group), strict=True)
    ]
    geometry = _geometry(config, kv_cache_config, grid, stages)
    return geometry, [*maps, *stages.elsewhere(stage)]


def whole_only(geometry: Geometry, maps: Iterable[LayerMap]) -> str | None:
    """The first layer whose pages can only be stored whole, since it is not known where a token
    lies in them; None if there is none."""
    for each in maps:
        group = geometry.groups[each.group]
        if group.kind != "recurrent" and each.runs and each.tokens is None:
            return group.layers[each.layer].name
    return None


def _geometry(
    config: "VllmConfig", kv_cache_config: "KVCacheConfig", grid: BlockGrid, stages: Stages
) -> Geometry:
    count, tensor_ranks = versions.world_of(config.parallel_config)
    groups = [
        _group(kv_cache_config.kv_cache_groups[blocks.table], stages.layers[index], blocks)
        for index, blocks in enumerate(grid.groups)
    ]
    return Geometry(
        block_tokens=grid.block_tokens,
        groups=groups,
        ranks=count * tensor_ranks,
        identity=stages.identity,
    )


def _group(group: "KVCacheGroupSpec", layers: list[Layer], blocks: EntryBlocks) -> Group:
    kind = versions.kind_of(versions.group_spec(group))
    return Group(
        "attention" if kind is None else kind,
        layers,
        window_tokens=blocks.window_tokens,
        blocks_per_entry=blocks.count,
    )


def _identity(
    config: "VllmConfig", kv_cache_config: "KVCacheConfig", grid: BlockGrid, kernels: Iterable[int]
) -> dict[str, str]:
    """The geometry's identity: what the bytes depend on besides shapes."""
    model, cache = config.model_config, config.cache_config
    recurrent = {
        spec.mamba_type.name
        for spec in all_specs(kv_cache_config)
        if versions.kind_of(spec) == "recurrent"
    }
    return {
        "model": str(model.model),
        "revision": str(model.revision),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache_dtype": str(cache.cache_dtype),
        "page_formats": ",".join(
            versions.page_format(spec)
            for spec in all_specs(kv_cache_config)
            if versions.kind_of(spec) != "recurrent"
        ),
        "layout": str(kv_cache_config.kv_cache_layout),
        "conv_state_layout": versions.conv_state_layout(),
        "recurrent_kinds": ",".join(sorted(recurrent)),
        "engine_block_tokens": _engine_blocks(grid),
        "kernel_block_tokens": ",".join(map(str, kernels)),
        "kernels": ";".join(
            ",".join(versions.kernels_of(config, group.layer_names))
            for group in kv_cache_config.kv_cache_groups
        ),
        "hash": str(cache.prefix_caching_hash_algo),
        "draft_layers": draft_layers(config.speculative_config),
        **_divided(config),
    }


def _context(config: "VllmConfig") -> int:
    return int(config.parallel_config.decode_context_parallel_size)


def _divided(config: "VllmConfig") -> dict[str, str]:
    """How ranks divide a context, if they do."""
    ranks, run = _context(config), config.parallel_config.cp_kv_cache_interleave_size
    return {"context_parallel": f"{ranks} ranks, runs of {run} tokens"} if ranks > 1 else {}


def _engine_blocks(grid: BlockGrid) -> str:
    return ",".join(str(blocks.tokens) for blocks in grid.groups)


def _state_segments(spec: "MambaSpec") -> list[Segment]:
    names = ("conv", "ssm") if len(spec.shapes) == 2 else ()
    return [
        Segment(names[i] if names else f"state{i}", dtype_name(dtype), list(shape))
        for i, (shape, dtype) in enumerate(zip(spec.shapes, spec.dtypes, strict=True))
    ]


def _planned_segments(spec: "KVCacheSpec", stride: int) -> list[Segment] | None:
    known = stride == spec.page_size_bytes
    if versions.kind_of(spec) == "recurrent":
        return _state_segments(spec) if known else None
    if not known and spec.page_size_padded is not None:
        return None
    content = spec.num_heads * spec.num_states * spec.state_content_size_bytes
    return [Segment("page", "uint8", [content if known else stride])]


@dataclass(frozen=True)
class _LayerView:
    """One layer's registered tensor, checked against its spec."""

    name: str
    spec: "KVCacheSpec"
    tensor: torch.Tensor
    kernel_blocks: int

    @classmethod
    def of(
        cls,
        name: str,
        spec: "KVCacheSpec",
        kv_caches: Mapping[str, torch.Tensor],
        num_blocks: int,
    ) -> "_LayerView":
        tensor = kv_caches.get(name)
        if not isinstance(tensor, torch.Tensor):
            found = "nothing" if tensor is None else f"a {type(tensor).__name__}"
            raise GeometryError(f"layer {name!r}: expected one registered tensor, found {found}")
        if versions.kind_of(spec) == "recurrent":
            dtype, content = torch.int8, (1, 1, spec.state_content_size_bytes)
        else:
            dtype = spec.dtype
            content = (
                spec.num_heads,
                spec.num_states,
                spec.state_content_size_bytes // dtype.itemsize,
            )
        if tensor.dtype != dtype:
            raise GeometryError(f"layer {name!r}: dtype: expected {dtype}, found {tensor.dtype}")
        blocks, split = tensor.shape[0] if tensor.dim() else 0, 0
        if blocks and blocks % num_blocks == 0:
            split = blocks // num_blocks
        expected = (num_blocks * split, content[0], content[1] // max(split, 1), content[2])
        if not split or content[1] % split or tuple(tensor.shape) != expected:
            raise GeometryError(
                f"layer {name!r}: shape: expected {(num_blocks, *content)} or the same in kernel "
                f"blocks, found {tuple(tensor.shape)}"
            )
        return cls(name, spec, tensor, split)

    @property
    def _sizes(self) -> list[int]:
        """Kernel blocks, heads, tokens and contents of one block."""
        return [self.kernel_blocks, *self.tensor.shape[1:]]

    @property
    def _order(self) -> list[int]:
        """These dimensions in the order of memory, outermost first."""
        return sorted(range(4), key=lambda dim: (-self.tensor.stride(dim), dim))

    @property
    def kernel_tokens(self) -> int:
        return self.spec.block_size // self.kernel_blocks

    @property
    def address(self) -> int:
        return self.tensor.data_ptr()

    @property
    def region_bytes(self) -> int:
        storage = self.tensor.untyped_storage()
        return storage.data_ptr() + storage.nbytes() - self.address

    @property
    def block_stride(self) -> int:
        return self.tensor.stride(0) * self.tensor.element_size() * self.kernel_blocks

    def require_placement(self, planned: "KVCacheTensor | None", index: int) -> None:
        """Rejects a tensor at another place in memory than in vLLM's plan."""
        if planned is None:
            raise GeometryError(
                f"layer {self.name!r}: expected in a kv_cache_tensor, found in none"
            )
        offset = self.address - self.tensor.untyped_storage().data_ptr()
        checks = (
            ("block stride", planned.block_stride, self.block_stride),
            ("offset", planned.offset + index * planned.layer_stride, offset),
        )
        for what, expected, found in checks:
            if expected != found:
                raise GeometryError(
                    f"layer {self.name!r}: {what}: expected {expected} bytes, found {found}"
                )

    def runs(self) -> list[tuple[int, int]]:
        """The runs (offset, bytes) of one block in the order of memory, without padding."""
        item = self.tensor.element_size()
        sizes = [self.kernel_blocks, *self.tensor.shape[1:]]
        dims = [
            (size, stride * item) for size, stride in zip(sizes, self.tensor.stride(), strict=True)
        ]
        dims.sort(key=lambda dim: -dim[1])
        try:
            return runs(dims, item, most=_MAX_RUNS)
        except GeometryError as error:
            raise UnsupportedError(f"layer {self.name!r}: {error}") from None

    def tokens(self, config: "VllmConfig") -> list[TokenPart] | None:
        """Which token each byte of a block belongs to; None if that is not known."""
        if versions.kind_of(self.spec) == "recurrent" or _context(config) > 1:
            return None
        placement = versions.placement(config, self.name, self.spec)
        if placement is None:
            return None
        return token_parts(placement, self._sizes, self._order, self.tensor.element_size())

    def map(self, config: "VllmConfig", group: int, layer: int, blocks: EntryBlocks) -> LayerMap:
        """The places of this layer's blocks, as a layer of the geometry."""
        return LayerMap(
            group=group,
            layer=layer,
            address=self.address,
            nbytes=self.region_bytes,
            block_stride=self.block_stride,
            runs=self.runs(),
            tokens=None if blocks.is_narrow else self.tokens(config),
        )

    def segments(self) -> list[Segment]:
        """The segments of a block of this layer, in the order of memory."""
        if versions.kind_of(self.spec) == "recurrent":
            return _state_segments(self.spec)
        sizes, order = self._sizes, self._order
        name = "latent" if versions.is_latent(self.spec) else "kv"
        return [Segment(name, dtype_name(self.tensor.dtype), [sizes[dim] for dim in order])]
