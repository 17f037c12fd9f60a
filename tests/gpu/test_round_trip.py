"""Caches of hybrid models at their real shapes leave the GPU and come back byte for byte."""

from __future__ import annotations

import pytest

from odd_runs import check_against_the_host
from overlaid import MODELS, check_round_trip

# Below how many bytes pieces move by a kernel: none, some, all.
BELOW = (0, 28 << 10, 1 << 40)


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("name", MODELS)
def test_a_hybrid_models_pages_and_checkpoints_come_back(memory, name, below):
    check_round_trip(memory, MODELS[name], kernel_below=below)


def test_the_smallest_and_the_largest_share_of_the_gpu_move_the_same_bytes(memory):
    for share in (1e-6, 1.0):
        check_round_trip(memory, MODELS["LFM2-1.2B"], "kernel", share=share)


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("seed", range(8))
def test_any_alignment_gives_the_host_engines_bytes_and_checksums(memory, seed, below):
    check_against_the_host(memory, seed, below)
