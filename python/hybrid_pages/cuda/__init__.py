"""CUDA without a framework: devices, streams, and layers found in arrays of any library.

Importing it needs no NVIDIA software, and imports neither torch nor CuPy. What copies is
:class:`hybrid_pages.CudaEngine`.
"""

from hybrid_pages.adapter.arrays import layer_map
from hybrid_pages.adapter.cuda import devices, is_available, reason, stream_handle

__all__ = ["devices", "is_available", "layer_map", "reason", "stream_handle"]
