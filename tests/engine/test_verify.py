"""With `verify_on_load`, bytes that changed in host memory never reach the engine."""

import pytest

from harness import Engine, tokens


@pytest.fixture(scope="module")
def engine(start):
    return start("qwen3.5", {"verify_on_load": True})


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_one_flipped_bit_is_found_and_the_prompt_recomputed(engine: Engine, kind, where):
    prompt = tokens(("bit", kind, where), 3 * engine.N + 4)
    engine.reset_all()
    cold = engine.run(prompt)
    arena, slots = engine.half.connection.arena, engine.slots_of_last(kind)[-1]
    slot, position = (slots[0], 0) if where == "first" else (slots[0], arena.slot_bytes - 1)
    data = bytearray(arena.read(slot))
    data[position] ^= 1
    arena.write(slot, bytes(data))
    engine.reset_local()
    with engine.counting() as counted:
        result = engine.run(prompt)
    assert result.host == 3 * engine.N
    assert result == cold
    assert counted["failures:load"] == 1


def test_whole_bytes_pass(engine: Engine):
    prompt = tokens("whole", 3 * engine.N + 4)
    assert engine.restored([prompt], prompt).host == 3 * engine.N
    assert engine.stats()["loaded_bytes:pages"] > 0
