"""vLLM as this connector knows it, beyond the public interface of connectors.

The next version of vLLM is a change of this package. It holds the supported versions, a table of
everything that the connector reads (:data:`READS`), how the versions differ
(:data:`DIFFERENCES`), and a function for each use of vLLM that relies on how it works inside.
Other modules call these functions or read what the table lists; they never ask vLLM's objects
whether an attribute exists, and never compare versions.

Importing this module imports neither torch nor vLLM.
"""

from hybrid_pages.vllm.versions.blocks import (
    cached_keys,
    carries,
    forget_blocks,
    pin,
    prefix_cache_of,
    tables_of,
    unpin,
)
from hybrid_pages.vllm.versions.command import serve_arguments
from hybrid_pages.vllm.versions.events import (
    block_removed,
    block_stored,
    event_extra_keys,
    event_kind,
    publishes_events,
)
from hybrid_pages.vllm.versions.lasting import (
    FILE_FORMATS,
    downloaded,
    hash_seed,
)
from hybrid_pages.vllm.versions.plan import (
    PAGE_FORMATS,
    Kind,
    conv_state_layout,
    exports_states,
    hash_tokens,
    is_latent,
    is_scratch,
    kernels_of,
    kind_of,
    layer_spec,
    page_format,
    page_format_of,
    steps_ahead,
    window_tokens,
)
from hybrid_pages.vllm.versions.reads import (
    READS,
    READS_COMMAND,
    READS_EARLY,
    missing,
)
from hybrid_pages.vllm.versions.requests import (
    STEPS_IN_FLIGHT,
    aborted,
    adapter_layout,
    compute_anew,
    drafter_tokens,
    end_step_at,
    failed,
    fields,
    fork_of,
    processed,
    reloads_adapter,
    token_at,
)
from hybrid_pages.vllm.versions.starting import (
    check_configurations,
    children,
    extra_configs,
    is_outermost,
    note_engine_cores,
    noted_engine_cores,
    only_serves,
    register_connector,
    restore_block_size,
    works_with_hybrid_manager,
)
from hybrid_pages.vllm.versions.supported import (
    DIFFERENCES,
    SUPPORTED,
    TESTED,
    installed,
    pins_memory,
    platform,
)

__all__ = [
    "DIFFERENCES",
    "FILE_FORMATS",
    "PAGE_FORMATS",
    "READS",
    "READS_COMMAND",
    "READS_EARLY",
    "STEPS_IN_FLIGHT",
    "SUPPORTED",
    "TESTED",
    "Kind",
    "aborted",
    "adapter_layout",
    "block_removed",
    "block_stored",
    "cached_keys",
    "carries",
    "check_configurations",
    "children",
    "compute_anew",
    "conv_state_layout",
    "downloaded",
    "drafter_tokens",
    "end_step_at",
    "event_extra_keys",
    "event_kind",
    "exports_states",
    "extra_configs",
    "failed",
    "fields",
    "forget_blocks",
    "fork_of",
    "hash_seed",
    "hash_tokens",
    "installed",
    "is_latent",
    "is_outermost",
    "is_scratch",
    "kernels_of",
    "kind_of",
    "layer_spec",
    "missing",
    "note_engine_cores",
    "noted_engine_cores",
    "only_serves",
    "page_format",
    "page_format_of",
    "pin",
    "pins_memory",
    "platform",
    "prefix_cache_of",
    "processed",
    "publishes_events",
    "register_connector",
    "reloads_adapter",
    "restore_block_size",
    "serve_arguments",
    "steps_ahead",
    "tables_of",
    "token_at",
    "unpin",
    "window_tokens",
    "works_with_hybrid_manager",
]
