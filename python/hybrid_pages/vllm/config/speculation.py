"""Speculative decoding: the methods that are accepted, and those on which cached bytes depend."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import SpeculativeConfig, VllmConfig

WITHOUT_LAYERS = ("ngram", "ngram_gpu")
"""Methods whose drafts come from the text. They have nothing in the KV cache."""
WITH_LAYERS = ("mtp", "eagle", "eagle3", "draft_model")
"""Methods whose drafts come from draft layers, which have pages."""
MOST_DRAFTS = 7


def rejected(config: "VllmConfig") -> list[str]:
    """The parts of an engine's speculative decoding that are not known to work, one line each."""
    found = config.speculative_config
    if found is None:
        return []
    methods, drafts = (*WITHOUT_LAYERS, *WITH_LAYERS), found.num_speculative_tokens
    stages = config.parallel_config.pipeline_parallel_size
    checks = [
        (
            stages != 1,
            "speculative_config with pipeline stages: expected one of both, found drafts and "
            f"pipeline_parallel_size {stages} (all stages but the last save states before rejected "
            "drafts are taken out of them: drop --speculative-config)",
        ),
        (
            found.method not in methods,
            f"speculative_config.method: expected one of {', '.join(methods)}, found "
            f"{found.method!r}",
        ),
        (
            not drafts or not 1 <= drafts <= MOST_DRAFTS,
            f"speculative_config.num_speculative_tokens: expected 1 to {MOST_DRAFTS}, found "
            f"{drafts}",
        ),
        (
            found.use_multi_module_mtp(),
            "speculative_config: expected one MTP module, found several (their pages depend on "
            "drafts; set num_speculative_tokens to 1)",
        ),
        (
            found.parallel_drafting,
            "speculative_config.parallel_drafting: expected false, found true",
        ),
        (
            found.num_speculative_tokens_per_batch_size is not None,
            "speculative_config.num_speculative_tokens_per_batch_size: expected none, found a "
            "schedule",
        ),
    ]
    return [message for wrong, message in checks if wrong]


def draft_layers(found: "SpeculativeConfig | None") -> str:
    """The model of the draft layers, on which their pages depend; empty if there are none."""
    if found is None or found.method not in WITH_LAYERS:
        return ""
    return f"{found.method} {found.model} {found.revision} {found.quantization}"
