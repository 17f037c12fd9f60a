"""Tiny models on the CPU, one thread, no network."""

import os

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error")

import functools
from collections.abc import Callable, Iterator

import pytest
import torch

import tiny

torch.set_num_threads(1)

_make = functools.cache(tiny.make)


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Iterator[torch.nn.Module]:
    """The tiny model that the test names; shared, so a test leaves it as it was."""
    yield _make(request.param)


@pytest.fixture
def make() -> Callable[..., torch.nn.Module]:
    """A tiny model by name: one of its own."""
    return tiny.make
