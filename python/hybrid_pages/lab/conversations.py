"""Chats and agents, token by token: prompts and answers as a server with a chat template sees them.

Everything follows from a seed. Lengths are drawn like those of public chat logs: a user says some
40 tokens at a time and gets some 220 back; an agent takes 8 to 40 steps.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count

from hybrid_pages import InvalidArgumentError
from hybrid_pages.lab.chat_template import FIRST_WORD, Message, Reasoning, Special, Template

SECONDS_PER_TOKEN = 0.02
"""Of an answer."""
LONGEST_PROMPT = 24_000


@dataclass(frozen=True)
class Kind:
    """What the conversations of a workload are like."""

    reasoning: Reasoning = Reasoning.NONE
    system: tuple[int, ...] = (200,)
    """Tokens of each system prompt. The first ones have more users."""
    turns: float = 6.0
    """Of the user, on average."""
    edited: float = 0.0
    """How many turns change an earlier message, or ask for the last answer again."""
    steps: tuple[int, int] = (0, 0)
    """Tool calls of an agent before it answers, at least and at most."""


KINDS = {
    "chat": Kind(system=(20, 200, 60, 1000, 500, 2000)),
    "chat-200": Kind(),
    "chat-1000": Kind(system=(1000,)),
    "chat-edited": Kind(edited=0.3),
    "reasoning-kept": Kind(Reasoning.KEPT),
    "reasoning-dropped": Kind(Reasoning.DROPPED),
    "reasoning-emptied": Kind(Reasoning.EMPTIED),
    "agent": Kind(system=(2500,), turns=1.0, steps=(8, 40)),
    "agent-dropped": Kind(Reasoning.DROPPED, (2500,), turns=1.5, steps=(8, 40)),
}
"""Workloads by name."""


@dataclass(frozen=True)
class ConversationRequest:
    """One request, and the answer that the model would give."""

    session: int
    at: float
    """Seconds since the start."""
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class _Asked:
    """A conversation's next request, so many seconds after its last answer."""

    gap: float
    prompt: list[int]
    answer: Message


_Talk = Generator[_Asked, tuple[int, ...], None]


class Workload:
    """Conversations of one kind, interleaved in time."""

    def __init__(
        self,
        kind: Kind,
        *,
        seed: int = 0,
        sessions: int = 40,
        rate: float = 0.2,
        scale: float = 1.0,
        vocabulary: int = 1000,
    ) -> None:
        """rate: new sessions a second. scale: of all lengths."""
        self._kind, self._template = kind, Template(kind.reasoning)
        self._seed, self._sessions = seed, sessions
        self._rate, self._scale, self._vocabulary = rate, scale, vocabulary
        rng = random.Random(f"{seed} system")
        self._systems = [
            Message(Special.SYSTEM, self._words(rng, max(1, round(tokens * scale))))
            for tokens in kind.system
        ]

    def beginnings(self) -> list[list[int]]:
        """What conversations share, each to be sent once and alone before they come."""
        return [self._template.shared(system) for system in self._systems]

    def requests(self) -> Generator[ConversationRequest, tuple[int, ...] | None, None]:
        """All requests in order of time. A model's own answer may be sent in return, as long as
        the one that the request says; else the conversation goes on from that one."""
        rng, order = random.Random(f"{self._seed} arrivals"), count()
        now, waiting = 0.0, []
        for session in range(self._sessions):
            now += rng.expovariate(self._rate)
            talk = self._talk(random.Random(f"{self._seed} {session}"))
            waiting.append((now, next(order), session, talk, next(talk)))
        heapq.heapify(waiting)
        while waiting:
            now, _, session, talk, asked = heapq.heappop(waiting)
            expected = asked.answer.tokens
            given = yield ConversationRequest(session, now, tuple(asked.prompt), expected)
            answer = expected if given is None else given
            if len(answer) != len(expected):
                raise InvalidArgumentError(
                    f"an answer: expected {len(expected)} tokens, found {len(answer)}"
                )
            for following in _sent(talk, answer):
                then = now + SECONDS_PER_TOKEN * len(answer) + following.gap
                heapq.heappush(waiting, (then, next(order), session, talk, following))

    # ---- one conversation

    def _talk(self, rng: random.Random) -> _Talk:
        kind = self._kind
        weights = [1 / (1 + place) for place in range(len(self._systems))]
        messages = list(rng.choices(self._systems, weights))
        gap = 0.0
        for _ in range(self._turns(rng)):
            if rng.random() < kind.edited and len(messages) > 2:
                self._go_back(rng, messages)
            if messages[-1].role is not Special.USER:
                messages.append(self._text(rng, Special.USER, 300 if kind.steps[1] else 40))
            if len(self._template.prompt(messages)) > LONGEST_PROMPT * self._scale:
                return
            if kind.steps[1]:
                yield from self._work(rng, messages, gap)
            else:
                yield from self._answered(rng, messages, gap, 220)
            gap = rng.lognormvariate(3.4, 0.8)

    def _turns(self, rng: random.Random) -> int:
        turns, more = 1, 1 - 1 / self._kind.turns
        while turns < 30 and rng.random() < more:
            turns += 1
        return turns

    def _go_back(self, rng: random.Random, messages: list[Message]) -> None:
        """The user asks for another answer, or takes back one of the last two messages."""
        asked = [i for i, message in enumerate(messages) if message.role is Special.USER]
        if rng.random() < 0.5:
            del messages[asked[-1] + 1 :]
        else:
            del messages[rng.choice(asked[-2:]) :]

    def _work(self, rng: random.Random, messages: list[Message], gap: float) -> _Talk:
        """Calls tools, and then answers."""
        for _ in range(rng.randint(*self._kind.steps)):
            yield from self._answered(rng, messages, gap, 80, call=True)
            messages.append(self._text(rng, Special.TOOL, 250))
            gap = rng.lognormvariate(0.7, 0.8)
        yield from self._answered(rng, messages, gap, 220)

    def _answered(
        self,
        rng: random.Random,
        messages: list[Message],
        gap: float,
        median: int,
        *,
        call: bool = False,
    ) -> _Talk:
        thought = self._text(rng, Special.ASSISTANT, median).tokens
        text = self._text(rng, Special.ASSISTANT, median).tokens
        if call:
            text = (Special.CALL, *text, Special.CALLED)
        expected = self._template.answer(thought, text)
        given = yield _Asked(gap, self._template.prompt(messages), expected)
        messages.append(Message(Special.ASSISTANT, given, expected.reasoning))

    def _text(self, rng: random.Random, role: Special, median: int) -> Message:
        """Something said: half of the lengths are above the median, a few far above."""
        tokens = min(8 * median, median * rng.lognormvariate(0, 0.9))
        return Message(role, self._words(rng, max(1, round(tokens * self._scale))))

    def _words(self, rng: random.Random, tokens: int) -> tuple[int, ...]:
        return tuple(rng.randrange(FIRST_WORD, self._vocabulary) for _ in range(tokens))


def _sent(talk: _Talk, answer: tuple[int, ...]) -> Iterator[_Asked]:
    """What a conversation asks next, if it goes on."""
    try:
        yield talk.send(answer)
    except StopIteration:
        return
