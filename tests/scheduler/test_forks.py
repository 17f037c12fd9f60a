"""Where prompts leave earlier ones inside a block, and the ends that templates leave each time."""

from __future__ import annotations

import hashlib
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from hybrid_pages._core import PrefixKeys
from hybrid_pages.vllm.scheduler.forks import MOST_LEFT, NOWHERE, Forks, Parting

N = 16
THINK = [901, 902]
"""What the template puts at the end of a prompt, and drops in the next one."""


def visit(forks: Forks, tokens: list[int], namespace: int = 0, **more: Any) -> Parting:
    """The parting of a prompt."""
    keys = PrefixKeys()
    for block in range(len(tokens) // N):
        said = repr((more, tokens[: (block + 1) * N])).encode()
        keys.append(hashlib.blake2b(said, digest_size=32).digest())
    request = Request("name", tokens.copy(), SamplingParams(max_tokens=4), None, **more)
    return forks.arrived(request, namespace, keys)


def run(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def test_the_second_prompt_knows_where_it_left_the_first() -> None:
    for start in (0, 1, 5, N - 1, N, N + 1, 3 * N, 3 * N + 7):
        forks = Forks(N)
        shared = run(0, start)
        assert visit(forks, shared + run(100, 20)) == NOWHERE
        found = visit(forks, shared + run(200, 20))
        assert (found.fork, found.continues) == (start if start % N else 0, False), start
        assert visit(forks, shared + run(300, 3)).fork == (start if start % N else 0), start


def test_a_prompt_that_comes_again_leaves_its_last_token_to_compute() -> None:
    for count in (2, N - 1, N + 1, 2 * N + 9):
        forks = Forks(N)
        assert visit(forks, run(0, count)).fork == 0
        assert visit(forks, run(0, count)).fork == count - 1


def test_a_prompt_that_goes_on_with_an_earlier_one_leaves_it_nowhere() -> None:
    forks = Forks(N)
    for count in (5, N - 1, N, N + 3, 2 * N + 1, 4 * N):
        found = visit(forks, run(0, count))
        assert (found.fork, found.continues) == (0, count > 5), count


def test_the_deepest_of_several_forks_counts() -> None:
    forks = Forks(N)
    for shared in (3, 9, 6):
        visit(forks, run(0, shared) + run(100 * shared, 20))
    assert visit(forks, run(0, 8) + run(5000, 20)).fork == 8


def test_namespaces_and_salts_know_nothing_of_each_other() -> None:
    forks = Forks(N)
    tokens = run(0, 10)
    visit(forks, tokens)
    for turn in range(2):
        visit(forks, [*tokens, *THINK], cache_salt="a")
        visit(forks, [*tokens, *run(100 * turn + 50, 9)], cache_salt="a")
    assert visit(forks, tokens, namespace=1) == NOWHERE
    assert visit(forks, tokens, cache_salt="b") == NOWHERE
    assert visit(forks, [*run(70, 20), *THINK], cache_salt="b") == NOWHERE
    assert visit(forks, [*run(70, 20), *THINK], cache_salt="a").end == 20


def conversation(forks: Forks, first: int, turns: int, system: int = 0) -> list[Parting]:
    """A chat whose template drops the reasoning of earlier turns."""
    text, partings = run(0, system), []
    for turn in range(turns):
        text = text + run(first + 100 * turn, 9)
        partings.append(visit(forks, text + THINK))
        assert partings[-1].end in (0, len(text))
        text = text + run(first + 100 * turn + 50, 23)
    return partings


def test_an_ending_that_is_dropped_twice_is_left_out_on_the_first_visit() -> None:
    forks = Forks(N)
    first = conversation(forks, 1000, 6)
    assert [bool(parting.end) for parting in first] == [False, False, True, True, True, True]
    second = conversation(forks, 3000, 3)
    assert all(parting.end for parting in second)


def test_answers_are_dropped_if_more_prompts_were_left_before_an_ending_than_continued() -> None:
    forks = Forks(N)
    assert [parting.drops for parting in conversation(forks, 1000, 4)] == [False, False, True, True]
    for turn in range(4):
        text = run(3000 + 100 * turn, 9) + THINK
        assert visit(forks, text).drops == (turn < 3)
        visit(forks, text + run(3050 + 100 * turn, 9))
    assert visit(forks, run(4000, 9) + THINK) == Parting(0, 9)


def test_an_ending_may_cross_a_block() -> None:
    for before in range(N + 3):
        forks = Forks(N)
        for turn in range(2):
            text = run(10_000 * (turn + 1), before + 1)
            visit(forks, text + THINK)
            visit(forks, text + run(50, 30))
        assert visit(forks, run(500, 40) + THINK).end == 40, before


def test_what_is_left_behind_long_endings_is_no_template() -> None:
    forks = Forks(8 * N)
    ending = run(900, MOST_LEFT + 1)
    for turn in range(4):
        text = run(1000 * (turn + 1), 20)
        visit(forks, text + ending)
        visit(forks, text + run(50, 30))
    assert visit(forks, run(500, 40) + ending).end == 0


def test_a_prompt_that_comes_again_teaches_no_ending() -> None:
    forks = Forks(N)
    for _ in range(5):
        assert visit(forks, run(0, 30)).end == 0


def test_the_oldest_prompts_are_forgotten_first() -> None:
    forks = Forks(N, most_tokens=10 * N)
    for turn in range(50):
        visit(forks, run(1000 * turn, 2 * N + 5))
    assert forks._tokens <= 10 * N
    assert forks._tokens == sum(
        len(piece.tokens) for pieces in forks._pieces.values() for piece in pieces
    )
    assert visit(forks, run(1000 * 49, 20) + run(5, 9)).fork == 20
    assert visit(forks, run(0, 20) + run(5, 9)).fork == 0
    forks.forget()
    assert visit(forks, run(1000 * 49, 20) + run(5, 9)).fork == 0
