"""Background stores, as on a GPU: states that later steps overwrite are copied to free blocks."""

import pytest

from harness import Engine, tokens
from test_detects import zero


@pytest.fixture(scope="module")
def engine(start):
    return start("qwen3.5", {"store_mode": "background"}, inside=True)


@pytest.mark.parametrize("length", [20, 45])
def test_the_end_of_a_prompt_is_gone_on_from_bit_for_bit(engine: Engine, length):
    """One token is computed, as in the answer that went on by itself; a zeroed state shows."""
    prompt = tokens(("copied", length), length)
    engine.reset_all()
    engine.run(tokens("reports", 3))
    whole = engine.run(prompt, 9)
    longer = (*prompt, whole.tokens[0])
    for spoil in (False, True):
        engine.reset_local()
        if spoil:
            (state,) = engine.slots_of_last("recurrent")
            zero(engine.half.connection.arena, [state[0]])
        rest = engine.run(longer, 8)
        assert rest.host == len(prompt)
        equal = (rest.tokens, rest.logprobs) == (whole.tokens[1:], whole.logprobs[1:])
        assert equal is not spoil
    assert not any(key.startswith("failures") for key in engine.stats())
