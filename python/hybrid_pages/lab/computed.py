"""What texts have in common, token by token: what nobody had to compute, and traces in blocks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from hybrid_pages.lab.conversations import ConversationRequest


class Computed:
    """The texts that were computed so far, as a tree of tokens."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        self._inner: set[int] = set()

    def known(self, prompt: Sequence[int]) -> int:
        """How many of a prompt's first tokens were computed before. The last one always is to be
        computed: it tells the first token of the answer."""
        node, nodes = 0, self._nodes
        for place, token in enumerate(prompt[:-1]):
            found = nodes.get((node, token))
            if found is None:
                return place
            node = found
        return max(0, len(prompt) - 1)

    def add(self, text: Sequence[int]) -> list[int]:
        """A text was computed. Returns a number for each of its prefixes, which says what it is."""
        node, nodes, found = 0, self._nodes, []
        for token in text:
            self._inner.add(node)
            node = nodes.setdefault((node, token), len(nodes) + 1)
            found.append(node)
        return found

    def blocks(self, tokens: int) -> int:
        """How many different blocks of so many tokens there are, with those at the ends of texts,
        which are not full."""
        depth = [0] * (len(self._nodes) + 1)
        for (parent, _), node in self._nodes.items():  # in order: a parent comes first
            depth[node] = depth[parent] + 1
        return sum(
            deep % tokens == 0 or node not in self._inner for node, deep in enumerate(depth) if deep
        )


def computed_by(request: ConversationRequest) -> tuple[int, ...]:
    """The tokens that a model runs for a request: the last one of an answer is only sampled."""
    return request.prompt + request.answer[:-1]


def ideal(
    requests: Iterable[ConversationRequest], before: Iterable[Sequence[int]] = ()
) -> Iterator[int]:
    """For each request, the tokens of its prompt that nobody had computed.

    before: texts that were computed before the first one.
    """
    computed = Computed()
    for text in before:
        computed.add(text)
    for request in requests:
        yield len(request.prompt) - computed.known(request.prompt)
        computed.add(computed_by(request))


def trace(requests: Iterable[ConversationRequest], block_tokens: int) -> Iterator[str]:
    """Lines of a trace that ``hybrid-pages lab`` reads, with blocks of so many tokens."""
    header = {"format": "hybrid-pages-trace", "version": 1, "block_tokens": block_tokens}
    yield json.dumps(header)
    computed = Computed()
    for request in requests:
        prefixes = computed.add(request.prompt)
        row = {
            "timestamp": round(1000 * request.at),
            "input_length": len(request.prompt),
            "output_length": len(request.answer),
            "hash_ids": prefixes[block_tokens - 1 :: block_tokens],
            "session": request.session,
        }
        yield json.dumps(row, separators=(",", ":"))
