"""Asynchronous scheduling, which GPUs run by default."""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Keeps what was asked for: vLLM's CPU platform switches asynchronous scheduling off."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def checked(cls: type[CpuPlatform], config: Any) -> None:
        asked = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = classmethod(checked)
