"""The states that vLLM's own Mamba-2 kernels export from inside a step are restored.

In float32: Triton's interpreter computes bfloat16 as integers.
"""

import pytest

from gpu_path.mamba_triton import triton_kernels
from harness import Engine, tokens


@pytest.fixture(scope="module")
def engine(start):
    with triton_kernels():
        yield start("granite4", dtype="float32")


def test_the_first_resend_restores_every_full_block(engine: Engine):
    prompt = tokens("first", 4 * engine.N + 13)
    assert engine.restored([prompt], prompt).host == 4 * engine.N


def test_an_extension_resumes_where_the_prompt_ended(engine: Engine):
    prompt = tokens("extended", 2 * engine.N + 7)
    assert engine.restored([prompt], prompt + tokens("more", engine.N)).host == 2 * engine.N
