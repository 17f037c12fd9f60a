"""How requests are scheduled on GPUs by default."""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Keeps what was asked for: vLLM's CPU platform switches asynchronous scheduling off, and for
    latent attention prefix caching and prefills in chunks, which its kernels can do as well."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def checked(cls: type[CpuPlatform], config: Any) -> None:
        kept = [
            (part, name, getattr(part, name))
            for part, names in (
                (
                    config.scheduler_config,
                    ("async_scheduling", "enable_chunked_prefill", "max_num_batched_tokens"),
                ),
                (config.cache_config, ("enable_prefix_caching",)),
            )
            for name in names
        ]
        check(cls, config)
        for part, name, value in kept:
            setattr(part, name, value)

    CpuPlatform.check_and_update_config = classmethod(checked)
