"""The connector's logger, below vLLM's own: only loggers there reach the engine's output."""

from vllm.logger import init_logger

logger = init_logger("vllm.hybrid_pages")
