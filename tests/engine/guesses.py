"""What a speculator guessed, beside what the engine answered, and what it guessed from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from harness import Engine, patched

Guesses = dict[str, list[list[int]]]
HEAD = "mtp."
"""How the names of the head's layers begin."""


@contextmanager
def guessing(engine: Engine) -> Iterator[Guesses]:
    """Notes by request, in the order of steps, what is guessed to come next.

    Not in the middle of a prefill, which may be cut into steps in another way.
    """
    runner = engine.core.model_executor.driver_worker.worker.model_runner
    propose, noted = runner.speculator.propose, {}
    given = inspect.signature(propose)

    def watched(*args: Any, **kwargs: Any) -> Any:
        guessed = propose(*args, **kwargs)
        arguments = given.bind(*args, **kwargs).arguments
        requests, sampled = arguments["input_batch"].req_ids, arguments["num_sampled"].tolist()
        for request, count, guess in zip(requests, sampled, guessed.tolist(), strict=False):
            if count:
                noted.setdefault(request.rpartition("-")[0], []).append(guess)
        return guessed

    with patched(runner.speculator, "propose", watched):
        yield noted


def with_guesses(engine: Engine, run: Callable[[], Any]) -> tuple[Any, list[list[list[int]]]]:
    """What `run` gives, and the guesses for its requests in the order of their first steps."""
    with guessing(engine) as noted:
        result = run()
    return result, list(noted.values())


def zero_head(engine: Engine, pages: Sequence[int] | None = None) -> None:
    """Zeroes what is stored of the head's layers for the last request, and nothing else.

    pages: counted in the order of blocks; all by default.
    """
    arena, geometry = engine.half.connection.arena, engine.half.connection.geometry
    stored = []
    for item, slots in engine.entries_of_last():
        layers = [
            layer
            for group in geometry.classes[item].groups
            for layer in geometry.groups[group].layers
        ]
        if any(layer.name.startswith(HEAD) for layer in layers):
            stored.append((layers, slots))
    assert stored
    for layers, slots in stored if pages is None else [stored[page] for page in pages]:
        whole, at = bytearray().join(arena.read(slot) for slot in slots), 0
        for layer in layers:
            if layer.name.startswith(HEAD):
                whole[at : at + layer.bytes] = bytes(layer.bytes)
            at += layer.bytes
        for i, slot in enumerate(slots):
            arena.write(slot, bytes(whole[i * arena.slot_bytes : (i + 1) * arena.slot_bytes]))
