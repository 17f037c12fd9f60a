"""Layers of a geometry, found in the arrays of another library, and names of dtypes."""

from hybrid_pages._core import ArrayView, GeometryError, InvalidArgumentError, LayerMap
from hybrid_pages.adapter.cuda import stream_handle
from hybrid_pages.adapter.strides import runs

_MAX_RUNS = 1 << 20
# What `__cuda_array_interface__` calls the default stream.
_LEGACY = 1


def dtype_name(dtype: object) -> str:
    """The name of a dtype as a :class:`hybrid_pages.Segment` takes it: ``bfloat16``.

    dtype: of torch, MLX or numpy, or any whose text ends with that name after a dot.
    """
    return str(dtype).rpartition(".")[2]


def layer_map(
    *,
    group: int,
    layer: int,
    array: object,
    num_blocks: int | None = None,
    stream: object = None,
) -> LayerMap:
    """Where the blocks of a layer lie, read from an array ``[blocks, ...]`` with any strides.

    The payload of a block is its items in the array's own order (C order), whatever the strides.
    Nothing is kept alive: give the array to the engine's ``owners``.

    Args:
        group: index of the group in the geometry.
        layer: index of the layer in the group.
        array: of torch, CuPy or whoever speaks DLPack or ``__cuda_array_interface__``.
        num_blocks: how many blocks the array holds, if consecutive rows make one; by default each
            row of the first dimension is a block.
        stream: the one that transfers will be ordered after, as for :func:`stream_handle`. By
            DLPack, the array's library makes it wait for what is still being written to the array.

    Raises:
        GeometryError: an empty array, rows that can't be shared out, blocks in descending order,
            or more than 2**20 contiguous pieces per block.
        InvalidArgumentError: an array that can't be written, a copy, one described wrongly, or one
            whose ``__cuda_array_interface__`` names another stream.
        TypeError: not an array.
    """
    handle = stream_handle(stream)
    view = ArrayView(array, stream=handle)
    where = f"group {group} layer {layer}"
    if view.stream not in (None, handle or _LEGACY):
        raise InvalidArgumentError(
            f"{where}: expected stream={view.stream:#x}, which the array's contents wait for, "
            f"found {handle:#x}: pass it here, and to the engine's transfers unless it has ended"
        )
    if not view.shape or 0 in view.shape:
        raise GeometryError(f"{where}: expected [blocks, ...], found the shape {view.shape}")
    rows, row_stride = view.shape[0], view.strides[0]
    blocks = rows if num_blocks is None else num_blocks
    if blocks < 1 or rows % blocks:
        raise GeometryError(f"{where}: expected a multiple of {blocks} rows, found {rows}")
    split = rows // blocks
    if blocks > 1 and row_stride < 0:
        raise GeometryError(f"{where}: expected ascending blocks, found a stride of {row_stride}")
    dims = [(split, row_stride), *zip(view.shape[1:], view.strides[1:], strict=True)]
    try:
        found = runs(dims, view.itemsize, most=_MAX_RUNS)
    except GeometryError as error:
        raise GeometryError(f"{where}: {error}") from None
    first = min(offset for offset, _ in found)
    found = [(offset - first, length) for offset, length in found]
    end = max(offset + length for offset, length in found)
    block_stride = row_stride * split if blocks > 1 else end
    return LayerMap(
        group=group,
        layer=layer,
        address=view.address + first,
        nbytes=(blocks - 1) * block_stride + end,
        block_stride=block_stride,
        runs=found,
    )
