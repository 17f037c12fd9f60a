"""Random trees of prompts, arriving one by one and all at once, and what can happen to them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from vllm.lora.request import LoRARequest
from vllm.v1.request import Request

from .engine import Engine, Result
from .function import VOCABULARY, Image
from .shapes import BLOCK_TOKENS

MAX_PROMPT = 320
KNOWN = 6
KINDS = ("short", "repeat", "repeat", "extend", "extend", "extend", "fork", "fork", "trim", "exact")
TURNS = ("next", "next", "next", "again", "edited", "template")
"""How a conversation goes on: from its answer, with another answer, from a changed message, or with
a template that drops the end of each prompt."""
ENDING = [11, 12, 13]
"""What a template puts behind each prompt, and drops in the next one."""


@dataclass(frozen=True)
class Mix:
    """How often what happens, as probabilities per step."""

    arrival: float = 0.4
    abort: float = 0.0
    forget: float = 0.0
    """vLLM's own prefix cache loses everything, so that hits have to be loaded."""
    reset: float = 0.0
    reset_all: float = 0.0
    """A reset that preempts whatever runs and clears the connector too."""
    salts: tuple[str | None, ...] = (None,)
    adapters: int = 0
    hints: float = 0.0
    """How many requests come with hints, some of which make no sense."""
    images: float = 0.0
    """How many requests have an image in them, of the few that there are."""
    turns: float = 0.0
    """How many requests are turns of a conversation."""
    priorities: int = 1
    """How many priorities requests have, if the engine heeds them."""


@dataclass
class Workload:
    """Requests whose prompts grow, fork and repeat."""

    rng: random.Random
    mix: Mix = Mix()
    known: list[list[int]] = field(default_factory=list)
    talks: list[Request] = field(default_factory=list)
    """Recent requests that have ended, each with an answer."""

    def fresh(self, length: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(length)]

    def prompt(self) -> list[int]:
        """A new prompt, mostly one that shares a prefix with an earlier one."""
        rng = self.rng
        kind = rng.choice(KINDS) if rng.random() < 0.9 else "fresh"
        base = rng.choice(self.known) if self.known else []
        if kind == "short":
            tokens = self.fresh(rng.randint(1, BLOCK_TOKENS))
        elif kind == "repeat" and base:
            tokens = list(base)
        elif kind == "extend" and base:
            tokens = base + self.fresh(rng.randint(1, 4 * BLOCK_TOKENS))
        elif kind == "fork" and base:
            cut = rng.randint(1, len(base))
            if rng.random() < 0.5:  # at a boundary, or one token beside it
                cut = max(1, cut // BLOCK_TOKENS * BLOCK_TOKENS + rng.choice((-1, 0, 1)))
            tokens = base[:cut] + self.fresh(rng.randint(1, 3 * BLOCK_TOKENS))
        elif kind == "trim" and len(base) > BLOCK_TOKENS:  # to where the state is known
            tokens = base[: (len(base) - 1) // BLOCK_TOKENS * BLOCK_TOKENS]
        elif kind == "exact":
            blocks = rng.randint(1, 8)
            tokens = (base + self.fresh(8 * BLOCK_TOKENS))[: blocks * BLOCK_TOKENS]
        else:
            tokens = self.fresh(rng.randint(2, 8) * BLOCK_TOKENS + rng.randint(-3, 3))
        self._know(tokens)
        return tokens[:MAX_PROMPT]

    def turn(self) -> tuple[list[int], Request | None]:
        """The next prompt of a conversation and the request that it goes on from; or the first one
        of another: many are short."""
        rng = self.rng
        if not self.talks or rng.random() < 0.2:
            return self.fresh(rng.choice((4, 20, 20, 50))), None
        talk = rng.choice(self.talks)
        prompt, answer = talk.prompt_token_ids, list(talk.output_token_ids)
        kind, said = rng.choice(TURNS), self.fresh(rng.randint(1, BLOCK_TOKENS))
        if kind == "again":
            return prompt, talk
        if kind == "edited":
            return prompt[: rng.randint(1, len(prompt))] + said, talk
        if kind == "template" and prompt[-len(ENDING) :] == ENDING:
            return prompt[: -len(ENDING)] + answer[-2:] + said + ENDING, talk
        return prompt + answer + said + (ENDING if kind == "template" else []), talk

    def arrive(self, engine: Engine) -> Result:
        if self.rng.random() < self.mix.turns:
            prompt, talk = self.turn()
            return self._add(engine, prompt[:MAX_PROMPT], talk)
        return self._add(engine, self.prompt())

    def _add(self, engine: Engine, prompt: list[int], like: Request | None = None) -> Result:
        rng, mix = self.rng, self.mix
        adapter = rng.randint(0, mix.adapters)
        lora = LoRARequest(f"a{adapter}", adapter, f"/a/{adapter}") if adapter else None
        salt = rng.choice(mix.salts)
        if like is not None and rng.random() < 0.9:
            salt, lora = like.cache_salt, like.lora_request
        hints = None
        if rng.random() < mix.hints:
            end = len(prompt)
            positions = [rng.randint(1, end) for _ in range(rng.randint(0, 3))]
            hints = rng.choice(({"checkpoint_at": positions}, {"checkpoint_at": [end + 1]}, "x"))
        images = list(engine.origin(like).images) if like is not None else []
        images = [image for image in images if image.offset + image.length <= len(prompt)]
        if not images and rng.random() < mix.images and len(prompt) > 4 * BLOCK_TOKENS:
            name = rng.choice("ab")  # the tokens that an image takes do not change
            place = rng.choice((3, BLOCK_TOKENS, 2 * BLOCK_TOKENS - 2))
            images.append(Image(name, place, BLOCK_TOKENS + ord(name) % 7))
        return engine.add(
            prompt,
            rng.choice((1, 2, 5, 20)),
            hints=hints,
            images=images,
            salt=salt,
            lora=lora,
            priority=rng.randrange(mix.priorities) if mix.priorities > 1 else 0,
        )

    def run(self, engine: Engine, requests: int) -> list[Result]:
        """Drives the engine until so many requests have come and gone, then checks everything."""
        results: list[Result] = []
        while len(results) < requests:
            if self.rng.random() < 0.05:
                results += (self.arrive(engine) for _ in range(self.rng.randint(2, 8)))
            elif results and self.rng.random() < 0.1 * self.mix.turns:  # several answers
                request = results[-1].request
                results.append(self._add(engine, request.prompt_token_ids, request))
            elif self.rng.random() < self.mix.arrival:
                results.append(self.arrive(engine))
            self._disturb(engine, results)
            engine.step()
            self._follow(results)
        engine.run()
        engine.check_idle()
        return results

    def _disturb(self, engine: Engine, results: list[Result]) -> None:
        rng, mix = self.rng, self.mix
        active = [result for result in results if not result.done]
        if active and rng.random() < mix.abort:
            engine.abort(rng.choice(active))
        if rng.random() < mix.forget:
            engine.forget_local()
        if rng.random() < mix.reset:
            engine.reset_prefix_cache()
        # vLLM itself does not preempt everything while blocks are held by transfers or a step
        # in flight.
        if rng.random() < mix.reset_all and engine.at_rest:
            assert engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)

    def _follow(self, results: list[Result]) -> None:
        """A finished conversation may go on from its answer."""
        for result in results[-4:]:
            if result.finish is not None and self.rng.random() < 0.1:
                self._know(result.request.prompt_token_ids + result.tokens)
        if self.mix.turns:
            ended = (result.request for result in results[-40:] if result.done)
            self.talks = [request for request in ended if request.num_output_tokens][-8:]

    def _know(self, tokens: list[int]) -> None:
        """Few prompts are known at a time, so that later ones share much with them."""
        if len(self.known) == KNOWN:
            del self.known[self.rng.randrange(KNOWN)]
        if len(tokens) <= MAX_PROMPT:
            self.known.append(tokens)
