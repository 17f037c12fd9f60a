"""vLLM as this connector knows it, beyond the public interface of connectors.

To support the next version of vLLM, change this package. It holds the supported versions, a table
of everything that the connector reads (:data:`READS`), how the versions differ
(:data:`DIFFERENCES`), and a function for each use of vLLM that relies on how it works inside. Other
modules call these functions or read what the table lists; they never ask vLLM's objects whether an
attribute exists, and never compare versions.

Importing this module imports neither torch nor vLLM.
"""

from hybrid_pages.vllm.versions.blocks import (
    blocks_to_finish,
    cached_keys,
    carries,
    forget_blocks,
    local_tokens,
    pin,
    prefix_cache_of,
    reserves_too_little,
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
from hybrid_pages.vllm.versions.pages import Placement, placement
from hybrid_pages.vllm.versions.plan import (
    PAGE_FORMATS,
    Kind,
    conv_state_layout,
    draft_slots,
    exports_states,
    hash_tokens,
    is_compressed,
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
    compute_anew,
    drafter_tokens,
    failed,
    fields,
    free_at_once,
    lora_layout,
    processed,
    reloads_lora,
    token_at,
)
from hybrid_pages.vllm.versions.starting import (
    check_configurations,
    children,
    extra_configs,
    is_outermost,
    logger,
    note_engine_cores,
    noted_engine_cores,
    only_serves,
    register_connector,
    restore_block_size,
    works_with_hybrid_manager,
)
from hybrid_pages.vllm.versions.stops import (
    end_step_at,
    fork_of,
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
    "Placement",
    "aborted",
    "block_removed",
    "block_stored",
    "blocks_to_finish",
    "cached_keys",
    "carries",
    "check_configurations",
    "children",
    "compute_anew",
    "conv_state_layout",
    "downloaded",
    "draft_slots",
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
    "free_at_once",
    "hash_seed",
    "hash_tokens",
    "installed",
    "is_compressed",
    "is_latent",
    "is_outermost",
    "is_scratch",
    "kernels_of",
    "kind_of",
    "layer_spec",
    "local_tokens",
    "logger",
    "lora_layout",
    "missing",
    "note_engine_cores",
    "noted_engine_cores",
    "only_serves",
    "page_format",
    "page_format_of",
    "pin",
    "pins_memory",
    "placement",
    "platform",
    "prefix_cache_of",
    "processed",
    "publishes_events",
    "register_connector",
    "reloads_lora",
    "reserves_too_little",
    "restore_block_size",
    "serve_arguments",
    "steps_ahead",
    "tables_of",
    "token_at",
    "unpin",
    "window_tokens",
    "works_with_hybrid_manager",
]
