"""Weights that change under a running engine: the recipe of docs/weight-updates.md."""

import re
from pathlib import Path

import pytest

from harness import Engine, tokens

RECIPE = Path(__file__).parents[2] / "docs" / "weight-updates.md"


@pytest.fixture(scope="module")
def engine(start):
    return start("qwen3.5", {"store_mode": "background"})


@pytest.fixture(scope="module")
def recipe():
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", RECIPE.read_text(), re.S | re.M):
        exec(block, names)
    return names


def change(model):
    """Every token gets another's embedding. (Copies of the linear layers' weights are packed.)"""
    for name, parameter in model.named_parameters():
        if name.endswith("embed_tokens.weight"):
            parameter.data.copy_(parameter.data.roll(1, 0))


@pytest.fixture
def prompt(engine: Engine):
    engine.abandon()
    engine.reset_all()
    return tokens("weights", 4 * engine.N + 9)


@pytest.mark.parametrize("function", ["update_weights", "train"])
def test_the_recipe_forgets_what_the_old_weights_made(engine: Engine, recipe, prompt, function):
    old = engine.run(prompt)
    recipe[function](engine.llm, change)
    new = engine.run(prompt)
    assert (new.local, new.host) == (0, 0)
    assert new == engine.cold(prompt) != old
    engine.reset_local()
    restored = engine.run(prompt)
    assert restored.host == 4 * engine.N and restored == new


def test_without_it_the_old_weights_answer(engine: Engine, prompt):
    """vLLM's contract: a plain reset is not meant for connectors."""
    engine.run(prompt)
    engine.llm.apply_model(change)
    engine.reset_local()
    wrong = engine.run(prompt)
    assert wrong.host == 4 * engine.N
    assert wrong != engine.cold(prompt)


def test_an_update_amid_a_prefill_publishes_nothing_of_before(engine: Engine, prompt):
    long = prompt + tokens("much", 3000)
    engine.submit(long, 4)
    engine.step()
    engine.step()
    assert not engine.vllm.reset_prefix_cache(reset_connector=True), "blocks are in use"
    engine.llm.apply_model(change)
    engine.drain()
    engine.abandon()
    stats = engine.half.connection.cache.stats()
    assert stats["pages"] + stats["checkpoints"] == 0
    engine.reset_local()
    new = engine.run(long)
    assert new.host == 0 and new == engine.cold(long)


def test_an_idle_engine_in_one_process_is_reset_and_sleeps_at_once(engine: Engine, prompt):
    """Stores run in the background, and the engine does not step after the last request."""
    for forget in (
        lambda: engine.vllm.reset_prefix_cache(),
        lambda: engine.vllm.reset_prefix_cache(True, True),
        lambda: engine.llm.sleep(1) or engine.llm.wake_up(),
    ):
        name = engine.submit(prompt, 4)
        while name not in engine._done:
            engine.step()
        engine._done.pop(name)
        assert forget()
        assert not len(engine.half.connection.stores)
    assert engine.run(prompt).host == 0, "sleep empties connectors"
    engine.reset_local()
    assert engine.run(prompt).host == 4 * engine.N


def test_following_vllms_resets_is_a_setting(start):
    engine = start("qwen3.5", {"follow_engine_resets": True})
    prompt = tokens("followed", 4 * engine.N + 9)
    old = engine.run(prompt)
    engine.llm.apply_model(change)
    engine.reset_local()
    new = engine.run(prompt)
    assert new.host == 0
    assert new == engine.cold(prompt) != old
