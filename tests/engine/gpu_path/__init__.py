"""The GPU features that vLLM on a CPU lacks, added in this process: no file of vLLM is edited.

`install` comes after the environment is set and before an engine is made. Each stand-in names what
it stands for; each replaces a function before the modules that use it take hold of it.
"""

from __future__ import annotations


def install() -> None:
    """Puts everything in place that needs no Triton."""
    from gpu_path import delta, latent, mamba, scheduling, start, strides

    for each in (scheduling, mamba, delta, latent, strides, start):
        each.install()
