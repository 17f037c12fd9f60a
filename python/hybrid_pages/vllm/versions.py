"""vLLM as this connector knows it, beyond the public interface of connectors.

The next version of vLLM is a change of this file. It holds the supported versions, a table of
everything that the connector reads (:data:`READS`), how the versions differ
(:data:`DIFFERENCES`), and a function for each use of vLLM that relies on how it works inside.
Other modules call these functions or read what the table lists; they never ask vLLM's objects
whether an attribute exists, and never compare versions.

Importing this module imports neither torch nor vLLM.
"""

import dis
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from hybrid_pages.adapter.versions import Supported

if TYPE_CHECKING:
    from vllm.config import CacheConfig, KVTransferConfig, ParallelConfig, VllmConfig
    from vllm.distributed.kv_events import BlockRemoved, BlockStored
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
    from vllm.v1.request import Request

SUPPORTED = Supported(
    user="hybrid-pages",
    package="vllm",
    first=(0, 32),
    end=(0, 34),
    remedy="install one of those, or start without HybridPagesConnector",
)
"""The vLLM versions that work."""

TESTED = ("0.32.0", "0.33.0")
"""The versions that the tests run on: the first is installed in ``.venv``, the others are named by
``VLLM_SOURCES`` in the Makefile. Every minor version of :data:`SUPPORTED` is among them."""

DIFFERENCES = {
    "0.33": (
        "Gated DeltaNet kernels also export the state of a prefill's last boundary "
        "(MambaSpec.num_prefill_checkpoint_blocks); before, Mamba-2 and KDA do",
        "KVConnectorBase_V1 declares unregister_kv_caches and restore_kv_caches, which sleep mode "
        "calls; before, nothing calls them",
        "planning moved from vllm.v1.core.kv_cache_utils to kv_cache_planning, which only the "
        "tests import",
    ),
}
"""How a version differs from those before it, where the connector or its tests notice."""

# ---- everything that is read

_KV = "vllm.v1.kv_cache_interface"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"

READS: dict[str, str] = {
    "vllm.version": "__version__",
    "vllm.logger": "init_logger",
    "vllm.platforms": "current_platform",
    "vllm.platforms.cpu.CpuPlatform": "device_name",
    # Configuration.
    "vllm.config": "get_current_vllm_config_or_none",
    "vllm.config.VllmConfig": (
        "additional_config attention_config cache_config compilation_config ec_transfer_config "
        "kv_events_config kv_transfer_config load_config lora_config mamba_config model_config "
        "num_prefill_lookahead_tokens parallel_config scheduler_config speculative_config "
        "use_v2_model_runner weight_transfer_config"
    ),
    "vllm.config.CompilationConfig": "static_forward_context",
    "vllm.config.LoadConfig": "download_dir load_format",
    "vllm.config.LoRAConfig": "lora_dtype",
    "vllm.config.SpeculativeConfig": (
        "draft_model_config method model num_speculative_tokens "
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
        "kv_connector_extra_config"
    ),
    "vllm.config.ModelConfig": (
        "code_revision dtype hf_config is_diffusion is_encoder_decoder is_hybrid max_model_len "
        "model model_class_overrides model_impl model_weights multimodal_config quantization "
        "quantization_config revision"
    ),
    "vllm.config.ParallelConfig": (
        "data_parallel_index data_parallel_size data_parallel_size_local "
        "decode_context_parallel_size distributed_executor_backend enable_elastic_ep "
        "enable_expert_parallel nnodes "
        "pipeline_parallel_size prefill_context_parallel_size rank tensor_parallel_size "
        "use_ubatching"
    ),
    "vllm.config.SchedulerConfig": "disable_hybrid_kv_cache_manager",
    # The connector's registry and base class.
    f"{_CONNECTOR}.factory.KVConnectorFactory": "_registry register_connector supports_hma_config",
    f"{_CONNECTOR}.v1.base.KVConnectorBase_V1": "_connector_metadata",
    "vllm.v1.metrics.cache_hit_source.CacheHitSource": "HOST",
    # The plan of the KV cache.
    f"{_KV}.KVCacheConfig": (
        "hash_block_size kv_cache_groups kv_cache_layout kv_cache_tensors num_blocks"
    ),
    f"{_KV}.KVCacheGroupSpec": ("enable_kv_transfer host_resident kv_cache_spec layer_names"),
    f"{_KV}.KVCacheTensor": "block_stride layer_stride layers offset",
    f"{_KV}.KVCacheSpec": "block_size page_size_bytes prefix_replay_tokens",
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
        "all_token_ids block_hashes cache_salt kv_transfer_params lora_request mm_features "
        "num_computed_tokens num_in_flight_tokens num_output_tokens num_prompt_tokens num_tokens "
        "prompt_embeds request_id session_id shared_prefix_boundary skip_reading_prefix_cache "
        "status"
    ),
    "vllm.multimodal.inputs.MultiModalFeatureSpec": "identifier mm_position",
    "vllm.multimodal.inputs.PlaceholderRange": "length offset",
    "vllm.v1.request.RequestStatus": "FINISHED_ABORTED FINISHED_ERROR",
    "vllm.lora.request.LoRARequest": (
        "is_3d_lora_weight load_inplace lora_int_id lora_name lora_path"
    ),
    "vllm.v1.core.block_pool.BlockPool": (
        "blocks cached_block_hash_to_block evict_blocks free_blocks touch"
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
    "vllm.v1.core.kv_cache_utils.KVCacheBlock": "block_hash block_hash_num_tokens block_id",
    "vllm.v1.core.kv_cache_manager.KVCacheBlocks": "blocks",
    "vllm.v1.core.kv_cache_manager.KVCacheManager": "coordinator free get_block_ids",
    "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator": "get_blocks",
    "vllm.v1.core.sched.output.SchedulerOutput": (
        "kv_connector_block_state num_scheduled_tokens total_num_scheduled_tokens"
    ),
    "vllm.v1.core.sched.output.KVConnectorBlockState": "boundary_state_offloads req_ids",
    "vllm.v1.outputs.KVConnectorOutput": (
        "finished_recving invalid_block_ids kv_connector_worker_meta"
    ),
}
"""Names that are read, by the module or class that has them. All of :data:`SUPPORTED` have all.

Where versions differ, a bar separates alternatives, of which each version has one: ``old|new`` for
a name, ``vllm.old.Class|vllm.new.Class`` for its owner.
"""

READS_EARLY = {"vllm.engine.arg_utils.EngineArgs": "create_engine_config"}
"""Read only where vLLM reads arguments, see :func:`check_configurations`; without it the same
errors come later, when the model is loaded."""


def installed() -> str:
    """The version of the vLLM that is imported here, as it writes it itself."""
    from vllm.version import __version__ as version

    return version


def platform() -> str:
    """The kind of device that vLLM runs on: ``cpu``, ``cuda``, ``rocm``, ``xpu`` and so on."""
    from vllm.platforms import current_platform

    return str(current_platform.device_name)


def pins_memory() -> bool:
    """Whether the caches lie on a device that needs pinned memory of the host."""
    return platform() == "cuda"


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
    """Whether a module has a name, or a class or what its constructors make."""
    if hasattr(owner, name) or name in getattr(owner, "__dataclass_fields__", ()):
        return True
    classes = owner.__mro__ if isinstance(owner, type) else ()
    return any(name in _set_by_constructor(item) for item in classes)


def _set_by_constructor(owner: type) -> set[str]:
    code = getattr(vars(owner).get("__init__"), "__code__", None)
    if code is None:
        return set()
    return {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}


# ---- starting


def register_connector(name: str, module: str) -> None:
    """Makes a connector's class known by its name, once: vLLM rejects a name that it knows."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, module, name)


_WRAPPED = "_checks_hybrid_pages"


def check_configurations(check: Callable[["VllmConfig"], None]) -> None:
    """Calls ``check`` with each configuration that this process makes from arguments.

    vLLM has no hook before it makes its connectors, which happens when the model is loaded, in
    processes whose errors end up far above the last line of the log. So this wraps
    ``EngineArgs.create_engine_config``, once, and only where that module is imported already:
    plugins are loaded while it makes a configuration.
    """
    arguments = sys.modules.get("vllm.engine.arg_utils")
    engine_args: Any = getattr(arguments, "EngineArgs", None)
    make = getattr(engine_args, "create_engine_config", None)
    if make is None or hasattr(make, _WRAPPED):
        return

    @functools.wraps(make)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = make(self, *args, **kwargs)
        check(config)
        return config

    setattr(create_engine_config, _WRAPPED, True)
    engine_args.create_engine_config = create_engine_config


_ENGINE_CORES = "_hybrid_pages_engine_cores"


def note_engine_cores(parallel: "ParallelConfig", total: int, here: int) -> None:
    """Notes how many engine cores there are, in all and on this machine.

    The engine cores get a pickled copy of the configuration. A dense model's set what it says of
    the others to 1, and leave alone what vLLM does not know. ``vllm.config.utils.replace`` refuses
    a configuration with such a note: vLLM uses that on this one for its weight cache's daemon, and
    for methods of speculation that are rejected.
    """
    object.__setattr__(parallel, _ENGINE_CORES, (total, here))


def noted_engine_cores(parallel: "ParallelConfig") -> tuple[int, int] | None:
    """What :func:`note_engine_cores` has noted; None if nothing."""
    found: tuple[int, int] | None = vars(parallel).get(_ENGINE_CORES)
    return found


def children(outer: "KVTransferConfig") -> "Iterator[KVTransferConfig]":
    """The connectors inside a ``MultiConnector``, made as it makes them itself."""
    if outer.kv_connector == "MultiConnector":
        for child in outer.kv_connector_extra_config.get("connectors") or ():
            yield type(outer)(**{"engine_id": outer.engine_id, **child})


def extra_configs(outer: "KVTransferConfig", connector: str) -> Iterator[dict[str, Any]]:
    """The settings of each connector of a name, as the configuration holds them: what is changed in
    them, every process gets that gets the configuration."""
    extra = outer.kv_connector_extra_config
    if outer.kv_connector == connector:
        yield extra
    elif outer.kv_connector == "MultiConnector":
        for child in extra.get("connectors") or ():
            if child.get("kv_connector") == connector:
                yield child.get("kv_connector_extra_config") or {}


def works_with_hybrid_manager(transfer: "KVTransferConfig") -> bool:
    """Whether a connector can work with several KV cache groups. For one that cannot, vLLM turns
    its hybrid KV cache manager off."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    return bool(KVConnectorFactory.supports_hma_config(transfer))


def is_outermost(transfer: "KVTransferConfig") -> bool:
    """Whether a transfer configuration is the engine's own, and not that of a child.

    Connectors are made while the engine's configuration is the current one; ``MultiConnector``
    gives its children copies with other transfer configurations.
    """
    from vllm.config import get_current_vllm_config_or_none

    engine = get_current_vllm_config_or_none()
    return engine is not None and engine.kv_transfer_config is transfer


def restore_block_size(cache: "CacheConfig", tokens: int) -> int | None:
    """Puts the block size back with which the scheduler was made.

    An engine core in a process of its own runs ``VllmConfig.__post_init__`` once more when it has
    started (``vllm/v1/engine/core.py``, ``_perform_handshakes``). The CPU platform then sets its
    default block size, the scheduler ends steps at multiples of that, and neither vLLM's cache nor
    this one gets a state that it can use.

    Returns:
        The block size that was found, if it was another one.
    """
    found = cache.block_size
    if found == tokens:
        return None
    cache.block_size = tokens
    return int(found)


# ---- the plan of the KV cache

Kind = Literal["attention", "window", "recurrent"]


def layer_spec(group: "KVCacheGroupSpec", layer: str) -> "KVCacheSpec":
    """The spec of one layer: groups of one type and several sizes have one for each layer."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    spec = group.kv_cache_spec
    return spec.kv_cache_specs[layer] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def kind_of(spec: "KVCacheSpec") -> Kind | None:
    """The kind of a layer's cache; None for one that the connector does not know.

    Attention is told by the exact class: subclasses such as chunked or sink attention keep other
    bytes, or other blocks.
    """
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        SlidingWindowSpec,
    )

    if isinstance(spec, MambaSpec):
        return "recurrent"
    kinds: dict[type, Kind] = {
        FullAttentionSpec: "attention",
        MLAAttentionSpec: "attention",
        SlidingWindowSpec: "window",
        SlidingWindowMLASpec: "window",
    }
    return kinds.get(type(spec))


def is_scratch(spec: "KVCacheSpec") -> bool:
    """Whether a layer's cache is of no use at a boundary: a ring of the tokens that are not yet
    compressed into one state, of which there are none there. vLLM's own hits go without it, too."""
    from vllm.v1.kv_cache_interface import CircularBufferSpec

    return isinstance(spec, CircularBufferSpec)


def is_latent(spec: "KVCacheSpec") -> bool:
    """Whether a page holds MLA's latent vectors, not keys and values."""
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

    return isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec)


PAGE_FORMATS = (
    "NONE",
    "FP8_PER_TENSOR",
    "FP8_PER_TOKEN_HEAD",
    "INT8_PER_TOKEN_HEAD",
    "INT4_PER_TOKEN_HEAD",
    "NVFP4",
    "NVFP4_DS_MLA",
)
"""Formats of attention pages that are tested, as ``KVQuantMode`` names them. The scales of each lie
inside the page or belong to the weights."""


def page_format(spec: "KVCacheSpec") -> str:
    """The format of an attention layer's pages; ``NONE`` if they are not quantised."""
    return str(spec.kv_quant_mode.name)


def page_format_of(cache_dtype: str) -> str:
    """The same for a ``kv_cache_dtype``."""
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    return str(get_kv_quant_mode(cache_dtype).name)


def window_tokens(spec: "KVCacheSpec") -> int:
    """How far back a sliding window's pages are kept."""
    return int(spec.sliding_window + spec.extra_retained_tokens)


def exports_states(spec: "KVCacheSpec") -> bool:
    """Whether the kernels of a recurrent layer export a prefill's last boundary state from inside
    the step that runs past it; see :data:`DIFFERENCES` for which layers do."""
    return bool(spec.num_prefill_checkpoint_blocks)


def hash_tokens(config: "KVCacheConfig") -> int | None:
    """Tokens that a prefix hash covers; None for whole blocks."""
    return config.hash_block_size


def conv_state_layout() -> str:
    """How convolution states lie in memory: set by the environment, not by the configuration."""
    from vllm.model_executor.layers.mamba.mamba_utils import get_conv_state_layout

    return str(get_conv_state_layout())


def kernels_of(config: "VllmConfig", layers: Iterable[str]) -> list[str]:
    """What computes the caches of layers, as it was chosen when the model was made: backends and
    the variants of custom operators. Known in a worker's process; empty elsewhere."""
    from torch.nn import Module
    from vllm.model_executor.custom_op import CustomOp

    made, found = config.compilation_config.static_forward_context, set()
    for layer in filter(None, map(made.get, layers)):
        found.add(_named(layer.get_attn_backend()))
        for module in layer.modules() if isinstance(layer, Module) else ():
            method = vars(module).get("_forward_method") if isinstance(module, CustomOp) else None
            if method is not None:  # a function, a method, or what compiles one
                name = getattr(method, "__name__", type(method).__name__)
                found.add(f"{_named(type(module))}.{name}")
    return sorted(found)


def _named(item: type) -> str:
    return f"{item.__module__}.{item.__qualname__}"


# ---- what outlives the engine

FILE_FORMATS = (
    "auto",
    "fastsafetensors",
    "hf",
    "instanttensor",
    "mistral",
    "npcache",
    "pt",
    "runai_streamer",
    "runai_streamer_sharded",
    "safetensors",
    "sharded_state",
)
"""Values of ``load_format`` whose weights are in the model's own folder, as files."""

_HASH_SEED, _DEFAULT_SEED = "PYTHONHASHSEED", "vllm's own"


def hash_seed(cache: "CacheConfig") -> str | None:
    """The seed of prefix hashes; None if each process makes one of its own.

    ``kv_cache_utils.resolve_none_hash_seed``: the environment's, else a constant for SHA-256 and
    random bytes for xxHash.
    """
    given = os.environ.get(_HASH_SEED)
    if given is not None:
        return given
    return None if cache.prefix_caching_hash_algo.startswith("xxhash") else _DEFAULT_SEED


def downloaded(model: str, revision: str | None, download_dir: str | None) -> str | None:
    """The folder of a model of the Hugging Face hub in this machine's cache; None if it is not
    there. Asks nobody."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return str(
            snapshot_download(
                model, revision=revision, cache_dir=download_dir, local_files_only=True
            )
        )
    except (HFValidationError, LocalEntryNotFoundError):
        return None


# ---- requests

STEPS_IN_FLIGHT = 2
"""Under asynchronous scheduling a step is planned before the one before it is reported: a step is
reported by the second update after it was planned, if not by the first."""


def processed(request: "Request") -> int:
    """Tokens that are computed for certain: a step is counted when it is planned, with its drafts,
    and those that are rejected are taken off when its report comes."""
    return int(request.num_computed_tokens - request.num_in_flight_tokens)


def token_at(request: "Request", position: int) -> bytes:
    """What a known token is: its id and, in an image, which image and where in it."""
    named = int(request.all_token_ids[position]).to_bytes(8, "little")
    for item in request.mm_features:
        place = item.mm_position
        if place.offset <= position < place.offset + place.length:
            named += f"{position - place.offset} {item.identifier}".encode()
    return named


def drafter_tokens(config: "VllmConfig", drafts: int) -> int | None:
    """The longest that a request may be after a step with draft layers; None for any length.

    The first runner leaves the draft layers out of a step, for all of its requests, if one of them
    is longer (``GPUModelRunner._input_fits_in_drafter``). Their pages then keep what was there.
    """
    found = config.speculative_config
    if found is None or config.use_v2_model_runner:
        return None
    model = found.draft_model_config
    longest = None if model is None else model.max_model_len
    return int(longest or config.model_config.max_model_len) - drafts


def fields(config: object) -> dict[str, Any]:
    """All values of one of vLLM's configurations, by name."""
    return vars(config)


def fork_of(request: "Request") -> int:
    """Where vLLM itself ends a step of a prompt, in tokens: a shared prefix ends there. 0 if
    nowhere."""
    return int(request.shared_prefix_boundary)


def end_step_at(request: "Request", tokens: int) -> None:
    """Asks the scheduler to end a step of a prompt after ``tokens``.

    ``Scheduler._mamba_block_aligned_split`` cuts at ``Request.shared_prefix_boundary`` if it lies
    ahead of what is computed, and reads it anew for each step.
    """
    request.shared_prefix_boundary = tokens


def failed(request: "Request") -> bool:
    """Whether an ended request ended in an error, such as a load of another connector."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.FINISHED_ERROR)


def aborted(request: "Request") -> bool:
    """Whether an ended request was aborted."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.FINISHED_ABORTED)


def compute_anew(request: "Request", manager: "KVCacheManager") -> None:
    """Makes a request that waits for a load begin again, with no blocks and nothing computed.

    vLLM's own way follows ``kv_load_failure_policy``, which it reads for all connectors at once,
    and by default ends such requests. The scheduler looks at ``num_computed_tokens`` when it takes
    up the request again: at 0 it looks prefixes up and allocates as for a new one.
    """
    manager.free(request)
    request.num_computed_tokens = 0


def reloads_adapter(adapter: "LoRARequest") -> bool:
    """Whether the worker reads an adapter's files again when the request is scheduled."""
    return bool(adapter.load_inplace)


def adapter_layout(adapter: "LoRARequest") -> str:
    """How an adapter's files are read, where a request says so."""
    return "fused experts" if adapter.is_3d_lora_weight else "as it is"


# ---- blocks


def block_id(block: "int | KVCacheBlock") -> int:
    """The id of a block that is given by itself or by its id."""
    return block if isinstance(block, int) else block.block_id


def blocks_of(manager: "KVCacheManager", request_id: str) -> "Sequence[Sequence[KVCacheBlock]]":
    """All blocks that vLLM holds for a request, by group; not to be changed, and for this step
    only. Other than ``get_block_ids``, it takes no longer for a longer request."""
    blocks: Sequence[Sequence[KVCacheBlock]] = manager.coordinator.get_blocks(request_id)
    return blocks


def carries(block: "KVCacheBlock", key: bytes, group: int, tokens: int) -> bool:
    """Whether vLLM knows a block by a prefix key, of a group and so many tokens."""
    if block.block_hash is None or block.block_hash_num_tokens != tokens:
        return False
    return bool(block.block_hash == _with_group()(key, group))


@functools.cache
def _with_group() -> Callable[[bytes, int], bytes]:
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    return make_block_hash_with_group_id


def cached_keys(pool: "BlockPool") -> frozenset[bytes]:
    """Prefix keys of all blocks in vLLM's own prefix cache, of any group."""
    from vllm.v1.core.kv_cache_utils import get_block_hash

    hashes = (block.block_hash for block in pool.blocks)
    return frozenset(get_block_hash(each) for each in hashes if each is not None)


def prefix_cache_of(pool: "BlockPool") -> object:
    """vLLM's own prefix cache, as an identity: another object after it was emptied.

    ``BlockPool.reset_prefix_cache`` replaces the map, and only when no request holds a block.
    """
    return pool.cached_block_hash_to_block


def forget_blocks(pool: "BlockPool", blocks: set[int]) -> None:
    """Takes blocks out of vLLM's own prefix cache; requests keep theirs."""
    pool.evict_blocks(blocks)


def pin(pool: "BlockPool", blocks: "list[KVCacheBlock]") -> None:
    """Keeps blocks from being given to others, whatever happens to their requests."""
    pool.touch(blocks)


def unpin(pool: "BlockPool", blocks: "list[KVCacheBlock]") -> None:
    """Lets go of pinned blocks."""
    pool.free_blocks(blocks)


# ---- events


def publishes_events(config: "VllmConfig") -> bool:
    """Whether the engine publishes KV events."""
    events = config.kv_events_config
    return events is not None and bool(events.enable_kv_cache_events)


def event_kind(group: "KVCacheGroupSpec") -> str:
    """The kind of a group as events name it."""
    from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

    return str(get_kv_cache_spec_kind(group.kv_cache_spec).value)


def event_extra_keys(request: "Request", start: int, end: int) -> tuple[object, ...] | None:
    """What the hash of the block of tokens [start, end) covers beyond tokens, as events say it."""
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, to_event_extra_keys

    keys, _ = generate_block_hash_extra_keys(request, start, end, 0)
    said = to_event_extra_keys([keys])
    return None if said is None else said[0]


def block_stored(
    *,
    hashes: list[bytes],
    parent: bytes | None,
    tokens: list[int],
    block_tokens: int,
    lora: tuple[int, str] | None,
    session: str | None,
    extra_keys: list[tuple[object, ...] | None],
    group: int,
    kind: str,
    below: bool,
) -> "BlockStored":
    """The event that blocks of a group, one after another, are in host memory, or below it.

    ``BlockPool.cache_full_blocks`` makes the same ones for the engine's own memory; a router
    matches both.
    """
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return BlockStored(
        block_hashes=[maybe_convert_block_hash(each) for each in hashes],
        parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
        token_ids=tokens,
        block_size=block_tokens,
        lora_id=None if lora is None else lora[0],
        lora_name=None if lora is None else lora[1],
        medium=_medium(below),
        extra_keys=extra_keys,
        group_idx=group,
        kv_cache_spec_kind=kind,
        session_id=session,
    )


def block_removed(hashes: list[bytes], group: int, below: bool) -> "BlockRemoved":
    """The event that blocks of a group are not in host memory, or below it, any more."""
    from vllm.distributed.kv_events import BlockRemoved
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return BlockRemoved(
        block_hashes=[maybe_convert_block_hash(each) for each in hashes],
        medium=_medium(below),
        group_idx=group,
    )


def _medium(below: bool) -> str:
    from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE

    return str(MEDIUM_STORAGE if below else MEDIUM_CPU)
