"""The vLLM plugin, turned on by one flag.

Importing this package imports neither torch nor vLLM; the entry point of
``vllm.general_plugins`` names :func:`register`, which vLLM calls in each of its processes.
"""

CONNECTOR = "HybridPagesConnector"
"""The name to give as ``kv_connector`` in ``--kv-transfer-config``."""

_MODULE = "hybrid_pages.vllm.connector"


def register() -> None:
    """Registers :data:`CONNECTOR` with vLLM, and checks configurations before a model is loaded.

    May be called any number of times.
    """
    from hybrid_pages.vllm import versions
    from hybrid_pages.vllm.startup import preflight

    preflight.install(CONNECTOR)
    versions.register_connector(CONNECTOR, _MODULE)
