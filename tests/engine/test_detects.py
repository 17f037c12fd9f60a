"""The comparisons can fail: wrong bytes in the cache show."""

import pytest

import at_once
from harness import Engine, tokens
from hybrid_pages import Arena


@pytest.fixture(
    scope="module", params=["qwen3.5", pytest.param("qwen3-next", marks=pytest.mark.long), "lfm2"]
)
def engine(request, start):
    return start(request.param)


@pytest.fixture
def stored(engine: Engine):
    """A prompt that is stored, and the result of vLLM's own hit for it."""
    prompt = tokens("detect", 4 * engine.N + 3)
    engine.reset_all()
    engine.run(prompt)
    engine.reset_local()
    restored = engine.run(prompt)
    engine.reset_local()
    with engine.looking_away():
        engine.run(prompt)
        reference = engine.local_hit(prompt, restored)
    assert restored == reference
    engine.reset_local()
    return prompt, reference


def zero(arena: Arena, slots):
    for slot in slots:
        arena.write(slot, bytes(arena.slot_bytes))


def shown(engine: Engine, prompt, reference) -> float:
    again = engine.run(prompt)
    assert again.host == reference.local
    return 0.0 if again == reference else again.distance(reference)


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_zeroed_entries_show(engine: Engine, stored, kind):
    for slots in engine.slots_of_last(kind):
        zero(engine.half.connection.arena, slots)
    assert shown(engine, *stored) > 0.05


def test_one_zeroed_page_shows(engine: Engine, stored):
    zero(engine.half.connection.arena, engine.slots_of_last("attention")[1])
    assert shown(engine, *stored) > 0


# Swapping two pages of one prompt would change nothing: keys carry their positions, and attention
# does not mind in which order it meets them.
@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_entries_swapped_between_two_prompts_show(engine: Engine, stored, kind):
    arena, slots = engine.half.connection.arena, engine.slots_of_last(kind)[-1]
    engine.run(tokens("another", 4 * engine.N + 3))
    for a, b in zip(slots, engine.slots_of_last(kind)[-1], strict=True):
        left, right = arena.read(a), arena.read(b)
        arena.write(a, right)
        arena.write(b, left)
    engine.reset_local()
    assert shown(engine, *stored) > 0


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_a_wrong_entry_shows_in_the_blocks_that_were_loaded(engine: Engine, stored, kind):
    prompt, _ = stored
    zero(engine.half.connection.arena, engine.slots_of_last(kind)[-1])
    result = engine.run(prompt)
    with pytest.raises(AssertionError):
        at_once.check_loaded_blocks(engine, prompt, result)


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_nothing_shows_when_the_bytes_are_put_back(engine: Engine, stored, kind):
    arena = engine.half.connection.arena
    kept = {slot: arena.read(slot) for slots in engine.slots_of_last(kind) for slot in slots}
    zero(arena, kept)
    for slot, data in kept.items():
        arena.write(slot, data)
    assert shown(engine, *stored) == 0
