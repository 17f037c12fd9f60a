"""Names of code: those that last are the same in another process, whatever the code holds."""

import functools

import pytest
import transformers

import tiny
from hybrid_pages.transformers import structure
from hybrid_pages.transformers.stable_names import Unnamed, stable_name


def code(source, **names):
    """A function as if the standard library had it."""
    space = dict(__name__="json", functools=functools) | names
    exec(source, space)
    return space["made"]()


HOLDS_ITSELF = """
def made(step=1):
    def inner(x):
        return outer(x) + STEP
    def outer(x):
        return inner(x)
    return outer
"""
DECORATED = """
def made():
    def decorate(function):
        @functools.wraps(function)
        def wrapped(*args):
            return wrapped.__wrapped__(*args) + STEP
        return wrapped
    @decorate
    def forward(x):
        return x
    return forward
"""
CHAIN = """
def made():
    a = lambda x: b(x)
    b = lambda x: c(x)
    c = lambda x: a(x) + b(x) + STEP
    return a
"""


@pytest.mark.parametrize("source", [HOLDS_ITSELF, DECORATED, CHAIN])
def test_a_function_that_holds_itself_has_a_name(source):
    first, second = (code(source.replace("STEP", "1")) for _ in range(2))
    other = code(source.replace("STEP", "2"))
    assert stable_name([first]) == stable_name([second]) != stable_name([other])


def test_an_object_that_holds_itself_has_a_name():
    def chained(*values):
        made = [functools.partial(print) for _ in values]
        for each, following, value in zip(made, [*made[1:], made[0]], values, strict=True):
            each.following, each.value = following, value
        return made[0]

    name = stable_name([chained(1, 2)])
    assert name == stable_name([chained(1, 2)])
    assert name != stable_name([chained(1, 3)])
    assert name != stable_name([chained(1, 2, 1, 2)])


def test_a_list_that_holds_itself_has_none():
    endless = []
    endless.append(endless)
    with pytest.raises(Unnamed, match="holds itself"):
        stable_name([endless])


@pytest.mark.parametrize("name", [*tiny.MODELS, *tiny.PLACES])
def test_the_models_of_transformers_have_names(name, make):
    found = [structure.describe(make(name)).key() for _ in range(2)]
    assert stable_name([found[0]]) == stable_name([found[1]])
    assert stable_name([found[0], transformers.__version__]) != stable_name([found[0]])
