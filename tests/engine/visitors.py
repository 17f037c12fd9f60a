"""Clients of a chat server, which do the same on every server, and the answers that each saw."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chat_server import Answer, Server, answer, cached, ranked

Message = dict[str, str]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "open": {"type": "boolean"},
        "day": {"enum": ["monday", "sunday"]},
    },
    "required": ["name", "open", "day"],
    "additionalProperties": False,
}
# Tokens of a stream whose client has gone.
LONG = 2000
STRUCTURED = {
    "choice": {"structured_outputs": {"choice": ["north gate", "south gate", "no gate"]}},
    "regex": {"structured_outputs": {"regex": r"[a-f]{3}-[0-9]{2}\."}},
    "json": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "visit", "schema": SCHEMA},
        }
    },
}
QUESTIONS = (
    "Who are you?",
    "What is there to see today, and on which floor would I find it?",
    "Tell me more of the second one, but keep it short.",
)


def system(name: str) -> Message:
    """Instructions of about three blocks, other ones for each name."""
    rules = " ".join(f"The {name} rule {i} is to be kind." for i in range(9))
    return {"role": "system", "content": rules}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class Visitor:
    """Sends requests and keeps the answers by name.

    vLLM's own prefix cache is emptied before each: only the connector can remember. `after`: who
    did the same before, whose conversations are repeated word by word, and all of it computed: the
    connector forgets, too.
    """

    def __init__(self, server: Server, after: "Visitor | None" = None) -> None:
        self.server, self._after = server, after
        self.seen: dict[str, Answer] = {}
        self.cached: dict[str, int] = {}
        self.prompts: dict[str, int] = {}
        # Of each stream that was closed.
        self.generated: list[float] = []

    def everything(self) -> None:
        """All that follows, once."""
        self.alone()
        self.several_choices()
        self.sixteen_at_once()

    def alone(self) -> None:
        """All that is sent one at a time."""
        self.talks()
        self.forks()
        self.streams()
        self.cancelled()
        # Computed alone, prompts take more than one step where the connector ends one for a state.
        if self._after is None or self.server.plain:
            self.seeded()
        self.prompt_logprobs()
        self.structured()
        self.stop_strings()

    def ask(self, name: str, messages: Sequence[Message], **more: Any) -> str:
        """One chat request, alone."""
        self.forget()
        return self._note(name, self.server.chat(messages, **more))

    def _note(self, name: str, reply: Any) -> str:
        self.seen[name], self.cached[name] = answer(reply), cached(reply)
        self.prompts[name] = reply.usage.prompt_tokens
        return (self._after or self).seen[name].texts[0]

    def forget(self) -> None:
        self.server.forget(everything=self._after is not None and not self.server.plain)

    # ---- one at a time

    def talks(self) -> None:
        """Two conversations in turns; each goes on from its own answers."""
        self.talk = {name: [system(name)] for name in ("museum", "station")}
        for turn, question in enumerate(QUESTIONS):
            for name, messages in self.talk.items():
                messages.append(user(question))
                text = self.ask(f"talk {name} {turn}", messages)
                messages.append({"role": "assistant", "content": text})

    def forks(self) -> None:
        """Other ways to go on after the second answer of a conversation."""
        trunk = self.talk["museum"][:5]
        for i in range(4):
            question = f"And if I come {i} days later, with my whole family and two dogs?"
            self.ask(f"fork {i}", [*trunk, user(question)])

    def streams(self) -> None:
        """The same as forks, word by word."""
        trunk = self.talk["museum"][:5]
        for i in range(2):
            self.forget()
            text, reason, at = "", None, []
            for choice in self._stream([*trunk, user(f"Then I will come on day {i}.")]):
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
                at += choice.logprobs.content if choice.logprobs else ()
            self.seen[f"stream {i}"] = Answer((text,), (reason,), (ranked(at),))

    def cancelled(self) -> None:
        """Streams that are closed amid their words, and the same prompts once more."""
        for i, name in enumerate(("tower", "tower", "harbour")):
            messages = [system(name), user(f"Tell me everything, from number {i} on.")]
            for _ in range(5):  # on busy cores an answer may end before the server is told
                self.forget()
                before = self.server.generated()
                stream = self._stream(messages, count=LONG, extra_body={"ignore_eos": True})
                for _ in range(2 + 5 * i):
                    next(stream)
                stream.close()
                self.forget()  # waits for the request's end
                generated = self.server.generated() - before
                if generated < LONG:
                    break
            self.generated.append(generated)
            self.ask(f"cancelled {i}", messages)

    def _stream(self, messages: Sequence[Message], count: int = 24, **more: Any) -> Iterator[Any]:
        with self.server.chat(messages, count, stream=True, **more) as chunks:
            for chunk in chunks:
                yield from chunk.choices

    def seeded(self) -> None:
        """Sampled, with a seed: a prompt known but for its last tokens, since vLLM on a CPU dies of
        a seed where a prompt takes more than one step; the server alone knows it from just before.
        """
        messages = self.talk["museum"][:4]
        self.ask("unseeded", messages)
        for name in ("seeded", "seeded again"):
            if not self.server.plain:
                self.server.forget()
            self._note(name, self.server.chat(messages, temperature=1, seed=7))

    def prompt_logprobs(self) -> None:
        """Plain text, with the ranking of the prompt's own tokens: vLLM computes all of those."""
        for i in range(2):
            self.forget()
            reply = self.server.client.completions.create(
                model=self.server.model,
                prompt=self.talk["station"][0]["content"],
                max_tokens=8,
                temperature=0,
                logprobs=3,
                extra_body={"prompt_logprobs": 2},
            )
            (choice,) = reply.choices
            rankings = json.dumps([choice.logprobs.model_dump(), choice.prompt_logprobs])
            name = f"prompt logprobs {i}"
            self.seen[name] = Answer((choice.text,), (choice.finish_reason,), (), rankings)
            self.cached[name] = cached(reply)

    def structured(self) -> None:
        """A choice, a pattern, an object."""
        for name, wanted in STRUCTURED.items():
            messages = [*self.talk["station"][:3], user(f"Answer as a {name}, please.")]
            self.ask(f"structured {name}", messages, count=100, extra_body=wanted)

    def stop_strings(self) -> None:
        """Strings that end an answer: of a token, across tokens, kept, never said."""
        messages, own = self.talk["museum"][:4], {"ignore_eos": True}
        # What a tiny model says depends on the CPU: it may end at once.
        text = self.ask("stop whole", messages, extra_body=own)
        for name, stop in {"short": text[5], "long": text[7:12], "none": "\u00e9"}.items():
            self.ask(f"stop {name}", messages, stop=[stop], extra_body=own)
        kept = own | {"include_stop_str_in_output": True}
        self.ask("stop kept", messages, stop=[text[7:12]], extra_body=kept)

    # ---- in one batch

    def several_choices(self) -> None:
        """Choices of one prompt: the likeliest one each (vLLM wants a temperature), and others."""
        messages = [*self.talk["museum"][:3], user("Say it in three ways.")]
        self.ask("choices", messages, n=3, temperature=0.01)
        self.ask("other choices", messages, n=3, temperature=1)

    def sixteen_at_once(self) -> None:
        """Conversations that fork from two known openings, all at the same time."""
        openings = [system("library"), system("airport")]
        for i, opening in enumerate(openings):
            self.ask(f"opening {i}", [opening, user("Hello?")])
        asked = {
            f"at once {i}": [openings[i % 2], user(f"I am number {i}, where do I find you?")]
            for i in range(16)
        }
        self.forget()
        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(self.server.chat, asked.values()))
        for name, reply in zip(asked, replies, strict=True):
            self._note(name, reply)
