"""Latent attention beside recurrent layers, whose blocks hold many tokens."""

from __future__ import annotations


def install() -> None:
    """Takes blocks of several of the CPU kernel's, as kernels on GPUs do."""
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

    def supports(cls: type[CPUMLABackend], block_size: int | None) -> bool:
        return block_size is None or block_size % 16 == 0

    CPUMLABackend.supports_block_size = classmethod(supports)
