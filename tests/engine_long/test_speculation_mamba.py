"""Guesses from the text, on vLLM's own Mamba-2 kernels: restored is what a local hit gives.

In float32: Triton's interpreter computes bfloat16 as integers.
"""

import pytest

from gpu_path.mamba_triton import triton_kernels
from guesses import with_guesses
from harness import Engine
from test_detects import zero
from test_speculation import NGRAM, nothing_fails, spoken  # noqa: F401

SPECULATION = NGRAM | {"num_speculative_tokens": 2}


@pytest.fixture(scope="module")
def engine(start):
    with triton_kernels():
        yield start(
            "granite4", dtype="float32", speculative_config=SPECULATION, async_scheduling=False
        )


def test_every_resend_is_what_a_local_hit_gives_and_zeroed_states_show(engine: Engine):
    prompt = spoken("resend", 3 * engine.N + 13)
    engine.reset_all()
    engine.run(prompt)
    restored = []
    for _ in range(2):
        engine.reset_local()
        restored.append(with_guesses(engine, lambda: engine.run(prompt, 6)))
    engine.reset_local()
    with engine.looking_away():
        engine.run(prompt)
        for found in restored:
            assert found[0].host >= 2 * engine.N
            again = with_guesses(engine, lambda: engine.local_hit(prompt, found[0], 6))  # noqa: B023
            assert again == found
    for slots in engine.slots_of_last("recurrent"):
        zero(engine.half.connection.arena, slots)
    engine.reset_local()
    wrong = engine.run(prompt, 6)
    assert wrong.host == restored[1][0].host
    assert wrong.distance(restored[1][0]) > 0.05
