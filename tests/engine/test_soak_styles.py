"""What resumes inside blocks is as close to a cold run as the soak asks, and no fault is."""

import pytest

from harness import tokens
from soak_styles import STYLES

PROMPTS = 8


@pytest.fixture(params=[name for name, style in STYLES.items() if style.inside])
def style(request):
    return STYLES[request.param]


def hinted(**hints):
    return {"extra_args": {"kv_transfer_params": {"hybrid_pages": hints}}}


@pytest.mark.long
def test_faults_are_outside_the_bound_and_rounding_inside(model, style):
    engine = style.engine(model(style.model), {"host_gb": 0.1})
    arena = engine.half.connection.arena

    def resumed(text, count=6):
        engine.reset_local()
        return engine.run(text, count, **hinted(store=False))

    def slots_after(text, kind):
        assert resumed((*text, 9), 1).host == len(text)
        return engine.slots_of_last(kind)[-1]

    try:
        for number in range(PROMPTS):
            length = number % 3 * engine.N + 9 + 5 * number
            prompt, other = tokens(("begun", number), length), tokens(("another", number), length)
            longer = prompt + tokens(("more", number), 6 + 3 * number)
            cold = engine.cold(longer, 6)
            engine.reset_all()
            for each in (prompt, prompt[:-1], other):
                engine.cold(each, 1)
            state, earlier = (slots_after(each, "recurrent") for each in (prompt, prompt[:-1]))
            page, foreign = (slots_after(each, "attention") for each in (prompt, other))
            faults = {
                "none": (state, state),
                "a state of one token earlier": (state, earlier),
                "a state of nothing": (state, None),
                "the last page of another prompt": (page, foreign),
            }
            for name, (slots, sources) in faults.items():
                right = [bytes(arena.read(slot)) for slot in slots]
                for slot, source in zip(slots, sources or slots, strict=True):
                    spoilt = arena.read(source) if sources else bytes(arena.slot_bytes)
                    arena.write(slot, bytes(spoilt))
                found = resumed(longer)
                assert found.host == length
                assert style.differs(found, cold) is (name != "none"), (
                    f"{length} tokens, {name}: {found.distance(cold)} off"
                )
                for slot, data in zip(slots, right, strict=True):
                    arena.write(slot, data)
            assert not style.differs(resumed(longer), cold)
    finally:
        engine.shutdown()
