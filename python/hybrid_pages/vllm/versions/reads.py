"""The names in vLLM that the connector reads, and those that a version of vLLM lacks."""

import dis
import importlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

_KV = "vllm.v1.kv_cache_interface"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"

READS: dict[str, str] = {
    "vllm.version": "__version__",
    "vllm.platforms": "current_platform",
    "vllm.platforms.cpu.CpuPlatform": "device_name",
    # Configuration.
    "vllm.config": "get_current_vllm_config_or_none",
    "vllm.config.VllmConfig": (
        "additional_config attention_config aux_output_config cache_config compilation_config "
        "ec_transfer_config kv_events_config kv_transfer_config load_config lora_config "
        "mamba_config model_config max_concurrent_batches num_prefill_lookahead_tokens "
        "parallel_config scheduler_config speculative_config use_v2_model_runner "
        "weight_transfer_config"
    ),
    "vllm.config.AuxOutputConfig": "enabled",
    "vllm.config.CompilationConfig": "static_forward_context",
    "vllm.config.LoadConfig": "download_dir load_format",
    "vllm.config.LoRAConfig": "lora_dtype",
    "vllm.config.SpeculativeConfig": (
        "draft_model_config max_num_new_slots_for_drafting method model num_speculative_tokens "
        "num_speculative_tokens_per_batch_size "
        "parallel_drafting quantization revision use_eagle_block_drop use_multi_module_mtp"
    ),
    "vllm.config.CacheConfig": (
        "block_size cache_dtype enable_prefix_caching kv_cache_dtype_skip_layers "
        "mamba_cache_dtype mamba_cache_mode mamba_ssm_cache_dtype "
        "prefix_cache_retention_interval prefix_caching_hash_algo use_replayssm"
    ),
    "vllm.config.kv_events.KVEventsConfig": "enable_kv_cache_events",
    "vllm.config.KVTransferConfig": (
        "enable_permute_local_kv engine_id is_kv_consumer is_kv_producer kv_connector "
        "kv_connector_extra_config kv_load_failure_policy"
    ),
    "vllm.config.ModelConfig": (
        "code_revision dtype hf_config is_diffusion is_encoder_decoder is_hybrid max_model_len "
        "model model_class_overrides model_impl model_weights multimodal_config quantization "
        "quantization_config revision"
    ),
    "vllm.config.MultiModalConfig": "language_model_only",
    "vllm.config.ParallelConfig": (
        "_api_process_count _api_process_rank "
        "data_parallel_index data_parallel_size data_parallel_size_local "
        "cp_kv_cache_interleave_size decode_context_parallel_size distributed_executor_backend "
        "enable_elastic_ep "
        "enable_expert_parallel nnodes_within_dp node_rank_within_dp "
        "pipeline_parallel_size prefill_context_parallel_size rank tensor_parallel_size "
        "use_ubatching world_size"
    ),
    "vllm.config.SchedulerConfig": (
        "disable_chunked_mm_input disable_hybrid_kv_cache_manager enable_chunked_prefill "
        "long_prefill_token_threshold max_num_batched_tokens max_num_scheduled_tokens max_num_seqs"
    ),
    # The connector's registry and base class.
    f"{_CONNECTOR}.factory.KVConnectorFactory": "_registry register_connector supports_hma_config",
    f"{_CONNECTOR}.v1.base.KVConnectorBase_V1": (
        "_connector_metadata supports_divergent_local_hybrid_hits"
    ),
    "vllm.v1.metrics.cache_hit_source.CacheHitSource": "DISK EXTERNAL_UNSPECIFIED HOST",
    # The plan of the KV cache.
    f"{_KV}.KVCacheConfig": (
        "hash_block_size kv_cache_groups kv_cache_layout kv_cache_tensors num_blocks"
    ),
    f"{_KV}.KVCacheGroupSpec": ("enable_kv_transfer host_resident kv_cache_spec layer_names"),
    f"{_KV}.KVCacheTensor": "block_stride layer_stride layers offset",
    f"{_KV}.KVCacheSpec": "block_size dcp_sharded page_size_bytes prefix_replay_tokens",
    f"{_KV}.CircularBufferSpec": "block_size",
    f"{_KV}.FullAttentionSpec": (
        "dtype kv_quant_mode num_heads num_states page_size_padded state_content_size_bytes "
        "tokens_per_state"
    ),
    f"{_KV}.MLAAttentionSpec": (
        "dtype kv_quant_mode num_heads num_states page_size_padded state_content_size_bytes "
        "tokens_per_state"
    ),
    f"{_KV}.SlidingWindowSpec": (
        "dtype extra_retained_tokens kv_quant_mode num_heads num_states page_size_padded "
        "sliding_window state_content_size_bytes tokens_per_state"
    ),
    f"{_KV}.SlidingWindowMLASpec": (
        "dtype extra_retained_tokens kv_quant_mode num_heads num_states page_size_padded "
        "sliding_window state_content_size_bytes tokens_per_state"
    ),
    f"{_KV}.MambaSpec": (
        "dtypes mamba_cache_mode mamba_type num_prefill_checkpoint_blocks shapes "
        "state_content_size_bytes"
    ),
    f"{_KV}.UniformTypeKVCacheSpecs": "kv_cache_specs",
    f"{_KV}.KVQuantMode": (
        "FP8_PER_TENSOR FP8_PER_TOKEN_HEAD INT4_PER_TOKEN_HEAD INT8_PER_TOKEN_HEAD NONE NVFP4 "
        "NVFP4_DS_MLA"
    ),
    _KV: "get_kv_cache_spec_kind get_kv_quant_mode",
    "vllm.model_executor.layers.mamba.mamba_utils": "get_conv_state_layout",
    "vllm.model_executor.layers.attention_layer_base.AttentionLayerBase": "get_attn_backend",
    "vllm.model_executor.custom_op.CustomOp": "_forward_method",
    # The scheduler's objects.
    "vllm.v1.request.Request": (
        "all_token_ids block_hashes cache_salt kv_transfer_params last_sched_seq lora_request "
        "mm_features num_computed_tokens num_in_flight_tokens num_output_tokens "
        "num_prompt_tokens num_tokens prompt_embeds request_id session_id shared_prefix_boundary "
        "skip_reading_prefix_cache status"
    ),
    "vllm.distributed.parallel_state": "get_pp_group",
    "vllm.distributed.parallel_state.GroupCoordinator": "cpu_group",
    "vllm.multimodal.inputs.MultiModalFeatureSpec": "identifier mm_position",
    "vllm.multimodal.inputs.PlaceholderRange": "length offset",
    "vllm.v1.request.RequestStatus": (
        "FINISHED_ABORTED FINISHED_ERROR PREEMPTED WAITING WAITING_FOR_REMOTE_KVS"
    ),
    "vllm.lora.request.LoRARequest": (
        "is_3d_lora_weight load_inplace lora_int_id lora_name lora_path"
    ),
    "vllm.v1.core.block_pool.BlockPool": (
        "_insert_block_hash blocks cached_block_hash_to_block enable_kv_cache_events evict_blocks "
        "free_blocks get_new_blocks get_num_free_blocks null_block num_gpu_blocks touch"
    ),
    "vllm.v1.core.kv_cache_utils": (
        "generate_block_hash_extra_keys get_block_hash make_block_hash_with_group_id "
        "maybe_convert_block_hash to_event_extra_keys"
    ),
    "vllm.distributed.kv_events": "MEDIUM_CPU MEDIUM_STORAGE",
    "vllm.distributed.kv_events.BlockRemoved": "block_hashes group_idx medium",
    "vllm.distributed.kv_events.BlockStored": (
        "block_hashes block_size extra_keys group_idx kv_cache_spec_kind lora_id lora_name medium "
        "parent_block_hash session_id token_ids"
    ),
    "vllm.v1.core.kv_cache_utils.KVCacheBlock": (
        "block_hash block_hash_num_tokens block_id is_null ref_cnt"
    ),
    "vllm.v1.core.kv_cache_manager.KVCacheBlocks": "blocks",
    "vllm.v1.core.kv_cache_manager.KVCacheManager": (
        "block_pool coordinator create_kv_cache_blocks empty_kv_cache_blocks free get_block_ids "
        "get_computed_blocks get_computed_blocks_for_connector kv_cache_config reset_prefix_cache"
    ),
    "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator": (
        "find_longest_cache_hit single_type_managers"
    ),
    "vllm.v1.core.kv_cache_coordinator.HybridKVCacheCoordinator": (
        "find_longest_cache_hit_per_group"
    ),
    "vllm.v1.core.single_type_kv_cache_manager.SingleTypeKVCacheManager": (
        "block_size get_num_blocks_to_allocate get_num_skipped_tokens "
        "max_admission_blocks_per_request req_to_blocks"
    ),
    "vllm.v1.core.sched.output.SchedulerOutput": (
        "finished_req_ids kv_cache_block_copies kv_connector_block_state num_scheduled_tokens "
        "preempted_req_ids total_num_scheduled_tokens"
    ),
    "vllm.v1.core.sched.output.KVConnectorBlockState": "boundary_state_offloads req_ids",
    "vllm.v1.outputs.KVConnectorOutput": (
        "finished_recving invalid_block_ids kv_connector_worker_meta"
    ),
}
"""Names that are read, by the module or class that has them. Every version in :data:`SUPPORTED` has
them.

Where versions differ, a bar separates alternatives, of which each version has one: ``old|new`` for
a name, ``vllm.old.Class|vllm.new.Class`` for its owner.
"""

READS_EARLY = {"vllm.engine.arg_utils.EngineArgs": "create_engine_config"}
"""Read only where vLLM reads arguments, see :func:`check_configurations`; without it the same
errors come later, when the model is loaded."""

READS_COMMAND = {
    "vllm.engine.arg_utils.AsyncEngineArgs": (
        "disable_log_stats from_cli_args kv_transfer_config max_logprobs"
    ),
    "vllm.entrypoints.launchers.cli_args|vllm.entrypoints.common.cli_args": "make_arg_parser",
    "vllm.utils.argparse_utils": "FlexibleArgumentParser",
    "vllm.utils.cpu_resource_utils": "get_memory_node_info get_visible_memory_node",
    "vllm.usage.usage_lib.UsageContext": "OPENAI_API_SERVER",
    "vllm.v1.engine.async_llm.AsyncLLM": (
        "from_engine_args generate model_config reset_prefix_cache shutdown tokenizer"
    ),
    "vllm.v1.metrics.reader": "get_metrics_snapshot",
}
"""Read only by ``hybrid-pages verify``."""


def missing(reads: dict[str, str] = READS) -> list[str]:
    """Compares :data:`READS` with the vLLM that would be imported here.

    Returns:
        One line for each name that it lacks, with the module or class that should have it.
    """
    return [line for owner, names in reads.items() for line in _missing(owner, names.split())]


def _missing(paths: str, names: Iterable[str]) -> Iterator[str]:
    found = ((path, _resolve(path)) for path in paths.split("|"))
    path, owner = next((each for each in found if each[1] is not None), (paths, None))
    if owner is None:
        expected = " or ".join(paths.split("|"))
        yield f"{expected}: expected a module or class of this name, found none"
        return
    what = "module" if isinstance(owner, ModuleType) else "class"
    for name in names:
        if not any(_has(owner, each) for each in name.split("|")):
            expected = " or ".join(map(repr, name.split("|")))
            yield f"{what} {path}: expected an attribute {expected}, found none"


def _resolve(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        return None


def _has(owner: Any, name: str) -> bool:
    """Whether a module or a class has a name, or a class's constructors set it."""
    if hasattr(owner, name) or name in getattr(owner, "__dataclass_fields__", ()):
        return True
    classes = owner.__mro__ if isinstance(owner, type) else ()
    return any(name in _set_by_constructor(item) for item in classes)


def _set_by_constructor(owner: type) -> set[str]:
    code = getattr(vars(owner).get("__init__"), "__code__", None)
    if code is None:
        return set()
    return {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
