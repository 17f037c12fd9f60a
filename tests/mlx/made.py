"""Fixtures: tiny models on the CPU."""

import mlx.core as mx
import pytest

import tiny


@pytest.fixture(scope="session")
def models():
    """Models by name, made once for each process."""
    made = {}

    def get(name, **kwargs):
        key = name, *sorted(kwargs)
        if key not in made:
            made[key] = tiny.make(name, **kwargs)
        return made[key]

    mx.set_default_device(mx.cpu)
    return get


@pytest.fixture(scope="session")
def tokenizer():
    return tiny.tokenizer()
