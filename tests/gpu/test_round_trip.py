"""Caches of hybrid models at their real shapes leave the GPU and come back byte for byte."""

from __future__ import annotations

import pytest

from odd_runs import check_against_the_host
from overlaid import MODELS, WAYS, check_round_trip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_hybrid_models_pages_and_checkpoints_come_back(memory, name, way):
    check_round_trip(memory, MODELS[name], **WAYS[way])


def test_the_smallest_and_the_largest_share_of_the_gpu_move_the_same_bytes(memory):
    for share in (1e-6, 1.0):
        check_round_trip(memory, MODELS["LFM2-1.2B"], **WAYS["kernel"], share=share)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(8))
def test_any_alignment_gives_the_host_engines_bytes_and_checksums(memory, seed, way):
    check_against_the_host(memory, seed, **WAYS[way])
