"""Hybrid caches of many rows at once, on torch tensors of any device.

A row is one sequence. A `Batch` is the state of every layer for the rows that a model computes
together. Rows are merged, extended, filtered and extracted; steps over rows of different lengths
are padded at the right or at the left. Every kind of layer is a `LayerCache`:

- `AttentionCache`: keys and values, of all tokens or of a sliding window;
- `PagedAttentionCache`: keys and values in blocks that rows share, rearranged without copies;
- `ConvCache`: the last inputs of a short convolution;
- `RecurrentCache`: the state of a recurrence;
- `CompositeCache`: several kinds in one layer.

Any other kind is a subclass of `LayerCache`. `hybrid_pages.batch.huggingface` takes rows from
Hugging Face caches and gives them back.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    from hybrid_pages.adapter.errors import missing

    raise missing("hybrid_pages.batch", "torch", "pip install torch", error) from error

from hybrid_pages.batch.attention import AttentionCache
from hybrid_pages.batch.batch import Batch
from hybrid_pages.batch.composite import CompositeCache
from hybrid_pages.batch.conv import ConvCache
from hybrid_pages.batch.layer import LayerCache
from hybrid_pages.batch.paged import PagedAttentionCache, PagedStorage
from hybrid_pages.batch.recurrent import RecurrentCache
from hybrid_pages.batch.step import Step
from hybrid_pages.batch.tables import BlockPool, BlockTable

__all__ = [
    "AttentionCache",
    "Batch",
    "BlockPool",
    "BlockTable",
    "CompositeCache",
    "ConvCache",
    "LayerCache",
    "PagedAttentionCache",
    "PagedStorage",
    "RecurrentCache",
    "Step",
]
