"""The vLLM versions that work, how they differ, and which one is here."""

from hybrid_pages.adapter.versions import Supported, is_since

TESTED = ("0.32.0", "0.33.0")
"""The versions that the tests run on: the first is installed in ``.venv``, the others are named by
``VLLM_SOURCES`` in the Makefile. Every minor version of :data:`SUPPORTED` is among them."""

SUPPORTED = Supported(
    user="hybrid-pages",
    package="vllm",
    first=(0, 32),
    end=(0, 34),
    remedy="install one of those, or start without HybridPagesConnector",
    tested=TESTED,
)
"""The vLLM versions that work."""

DIFFERENCES = {
    "0.33": (
        "Gated DeltaNet kernels also export the state of a prefill's last boundary "
        "(MambaSpec.num_prefill_checkpoint_blocks); before, Mamba-2 and KDA do",
        "KVConnectorBase_V1 declares unregister_kv_caches and restore_kv_caches, which sleep mode "
        "calls; before, nothing calls them",
        "planning moved from vllm.v1.core.kv_cache_utils to kv_cache_planning, which only the "
        "tests import",
        "Ray has one executor, whose workers all report; before, that of "
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0 passes on what the last pipeline stage reports",
        "the parser of `vllm serve` moved from entrypoints.launchers.cli_args to "
        "entrypoints.common.cli_args",
        "with --enable-return-routed-experts, vLLM keeps the experts of what it has evicted, for "
        "twice its pool, and turns down loads beyond them; before, a load can end the engine",
        "with --disable-chunked-mm-input, a step of a prefill is cut at a block boundary first and "
        "then before an image that it would cut; before, in the opposite order",
    ),
}
"""How a version differs from those before it, where the connector or its tests notice."""


def installed() -> str:
    """The version of the vLLM that is imported here, as it writes it itself."""
    from vllm.version import __version__ as version

    return version


def platform() -> str:
    """The kind of device that vLLM runs on: ``cpu``, ``cuda``, ``rocm``, ``xpu`` and so on."""
    from vllm.platforms import current_platform

    return str(current_platform.device_name)


def keeps_experts_of_loads() -> bool:
    """Whether requests whose routed experts are returned may load, see :data:`DIFFERENCES`."""
    return is_since(installed(), (0, 33))


def stalls_before_images() -> bool:
    """Whether a request can wait for ever before an image that no step may cut, since a step that
    begins inside a block or at the image ends at the next block boundary. See
    :data:`DIFFERENCES`; ``Scheduler._try_schedule_encoder_inputs``."""
    return is_since(installed(), (0, 33))


def pins_memory() -> bool:
    """Whether the caches lie on a device that needs pinned memory of the host."""
    return platform() == "cuda"
