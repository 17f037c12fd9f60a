"""Continuous batching of a hybrid model on a CPU: requests come and go, rows decode together.

    python examples/continuous_batching.py [--json] [--model FOLDER]

A new request is prefilled as a row of its own, from the longest prefix that is known. The row is
merged into the running batch. Each step gives every row one token. Finished rows are filtered out.
The program checks that each text equals that of `model.generate` for the request alone.

It needs torch and transformers. The model is a tiny Qwen3.5 with random weights, made on the spot,
and its texts are token ids. Prompts cost such a small model little, so the saving of prefix reuse
shows in the number of restored tokens rather than in the rate.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.utils import logging

from hybrid_pages.batch import Batch
from hybrid_pages.batch.huggingface import from_transformers, model_inputs, to_transformers
from hybrid_pages.demo import models
from hybrid_pages.transformers import PrefixCache


@dataclass(frozen=True)
class Request:
    """A prompt, its maximum of new tokens, and the step of the loop at which it arrives."""

    prompt: list[int]
    new_tokens: int
    arrival: int


@dataclass
class Row:
    """A request that is being served. The model has not seen the last token of `text` yet."""

    number: int
    request: Request
    text: list[int]
    stop: int | None

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.text) - 1

    @property
    def done(self) -> bool:
        return len(self.text) == self.request.new_tokens or self.text[-1] == self.stop


@dataclass(frozen=True)
class Report:
    """The results. Rates are new tokens per second over the whole run, prompts included."""

    requests: int
    new_tokens: int
    rows: int
    runs: int
    texts_equal: bool
    tokens_per_second: dict[str, float]
    hits: int
    prompt_tokens: int
    restored_tokens: int


# Computes a prompt and its first token: `model.generate`, or the same with prefix reuse.
Generate = Callable[..., Any]


class Loop:
    """The rows that decode together, and the model's cache for them."""

    def __init__(self, model: PreTrainedModel, generate: Generate) -> None:
        self.model, self.generate = model, generate
        self.rows: list[Row] = []
        self.cache: DynamicCache | None = None

    def batch(self) -> Batch:
        return from_transformers(self.cache, [row.length for row in self.rows])

    def admit(self, arrived: list[tuple[int, Request]]) -> None:
        """Prefill each request as a row of its own and merge all of them into the batch."""
        if not arrived:
            return
        batches = [self.batch()] if self.rows else []
        for number, request in arrived:
            prompt = torch.tensor([request.prompt])
            made = self.generate(
                prompt, max_new_tokens=1, do_sample=False, return_dict_in_generate=True
            )
            batches.append(from_transformers(made.past_key_values))
            first = int(made.sequences[0, -1])
            self.rows.append(Row(number, request, [first], self.model.config.eos_token_id))
        self.cache = to_transformers(Batch.merge(batches), self.model.config)

    def leave(self) -> list[Row]:
        """Remove finished rows and return them."""
        done = [row for row in self.rows if row.done]
        going = [place for place, row in enumerate(self.rows) if not row.done]
        if done and going:
            batch = self.batch()
            batch.filter(going)
            self.cache = to_transformers(batch, self.model.config)
        self.rows = [row for row in self.rows if not row.done]
        return done

    def decode(self) -> None:
        """Generate one more token for every row."""
        last = torch.tensor([[row.text[-1]] for row in self.rows])
        lengths = [row.length for row in self.rows]
        logits = self.model(last, past_key_values=self.cache, **model_inputs(lengths)).logits
        for row, token in zip(self.rows, logits[:, -1].argmax(dim=-1).tolist(), strict=True):
            row.text.append(token)


@torch.no_grad()
def serve(
    model: PreTrainedModel, generate: Generate, requests: list[Request], most_rows: int
) -> list[list[int]]:
    """The new tokens of each request, at most `most_rows` of them decoding at a time."""
    waiting = deque(sorted(enumerate(requests), key=lambda item: item[1].arrival))
    texts: list[list[int]] = [[] for _ in requests]
    loop, clock = Loop(model, generate), 0
    while waiting or loop.rows:
        arrived: list[tuple[int, Request]] = []
        while waiting and len(loop.rows) + len(arrived) < most_rows:
            if waiting[0][1].arrival > clock:
                break
            arrived.append(waiting.popleft())
        loop.admit(arrived)
        for row in loop.leave():
            texts[row.number] = row.text
        if loop.rows:
            loop.decode()
        clock += 1
    return texts


def make_requests(count: int, seed: int) -> list[Request]:
    """Requests that share two long beginnings and arrive one after the other."""
    pick = random.Random(seed)

    def tokens(number: int) -> list[int]:
        return [pick.randrange(models.FIRST_TOKEN, models.VOCAB) for _ in range(number)]

    beginnings = [tokens(640), tokens(448)]
    return [
        Request(
            prompt=beginnings[index % 2] + tokens(pick.randint(5, 40)),
            new_tokens=pick.randint(10, 20),
            arrival=index,
        )
        for index in range(count)
    ]


def alone(model: PreTrainedModel, request: Request) -> list[int]:
    """The text as Hugging Face generates it for the request alone."""
    ids = torch.tensor([request.prompt])
    made = model.generate(ids, max_new_tokens=request.new_tokens, do_sample=False)
    text: list[int] = made[0, len(request.prompt) :].tolist()
    return text


def measure(model: PreTrainedModel, requests: list[Request], rows: int, runs: int) -> Report:
    """Serve the requests one by one, batched, and batched with prefix reuse; compare and time."""
    expected = [alone(model, request) for request in requests]
    tokens = sum(map(len, expected))
    rates: dict[str, list[float]] = {"one_by_one": [], "batched": [], "batched_with_reuse": []}
    for _ in range(runs):
        for name, measured in rates.items():
            # Each run has its own cache, so no run profits from the one before.
            reuse = PrefixCache(model, host_gb=0.25) if name == "batched_with_reuse" else None
            generate = model.generate if reuse is None else reuse.generate
            start = time.perf_counter()
            texts = serve(model, generate, requests, 1 if name == "one_by_one" else rows)
            measured.append(tokens / (time.perf_counter() - start))
            if texts != expected:
                raise AssertionError(f"{name}: expected the texts of each request alone, {texts}")
            if reuse is not None:
                stats = reuse.stats()
                reuse.close()
    return Report(
        requests=len(requests),
        new_tokens=tokens,
        rows=rows,
        runs=runs,
        texts_equal=True,
        tokens_per_second={name: round(median(found), 1) for name, found in rates.items()},
        hits=stats.hits,
        prompt_tokens=stats.prompt_tokens,
        restored_tokens=stats.restored_tokens,
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", help="a folder with a hybrid model, instead of the tiny one")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8, help="most rows that decode together")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind; medians count")
    options = parser.parse_args(words)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = options.model
    if folder is None:
        folder = models.ensure("qwen3.5")
        # On tensors this small threads only wait for each other.
        torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    report = measure(model, make_requests(options.requests, seed=0), options.rows, options.runs)
    if options.json:
        print(json.dumps(asdict(report)))
        return
    print(f"{report.requests} requests, {report.new_tokens} new tokens: texts equal to each alone")
    for name, rate in report.tokens_per_second.items():
        print(f"  {name.replace('_', ' '):20} {rate:8.1f} tokens/s (median of {report.runs} runs)")
    print(
        f"  hits: {report.hits} of {report.requests} prompts, "
        f"{report.restored_tokens} of {report.prompt_tokens} prompt tokens restored"
    )


if __name__ == "__main__":
    main()
