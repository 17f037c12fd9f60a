"""What a runner does with drafts: states of each, and the layers that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .config import MAX_MODEL_LEN
from .function import Bytes, digest_of, expand
from .memory import LayerMemory

if TYPE_CHECKING:
    from .runner import Runner, Running, Step

NULL_BLOCK = 0


class Drafting:
    """A rank's part in speculative decoding."""

    def __init__(self, runner: Runner) -> None:
        assert runner.speculation is not None
        self.runner, self.memory = runner, runner.memory
        self.speculation = runner.speculation
        self.unwritten: set[tuple[int, int, int]] = set()
        """Places, as (group, block, offset), that draft layers have left out."""

    # ---- states

    def advance(self, step: Step, group: int, layer: LayerMemory) -> None:
        """Reads the state before a step, checks it, and writes the one after each of its drafts:
        temporal states in columns of their own, inputs of convolutions one behind the other."""
        request, table, form = step.request, step.request.tables[group], layer.form
        column, bias = request.state_columns[group], request.accepted - 1
        self._require(request, layer, table[column], column)
        key = layer.key
        if step.start:
            wrong = form.wrong_part(
                layer.state(table[column]),
                bias,
                layer.state(table[column + bias]),
                request.prefix,
                step.start,
                key,
            )
            if wrong is not None:
                self.runner._mismatch(
                    request,
                    layer,
                    f"the state after {step.start} tokens, columns {column} and {bias} behind: "
                    f"{wrong}",
                )
        first = step.end - len(step.drafts)
        image = layer.state(table[column])
        form.write_inputs(image, request.prefix, first, len(step.drafts), key)
        form.write_temporal(image, request.prefix.after(first), key)
        layer.write_state(table[column], image)
        for draft in range(1, len(step.drafts) + 1):
            block = table[column + draft]
            self._require(request, layer, block, column + draft)
            image = layer.state(block)
            form.write_temporal(image, request.prefix.after(first + draft), key)
            layer.write_state(block, image)
        if step.scheduled > len(step.drafts) + 1:
            self.runner._export(request, group, layer, step.end)

    def settle(self, step: Step) -> None:
        """If the accepted tokens reach a boundary, its state moves to the boundary's column."""
        request, first = step.request, step.end - len(step.drafts)
        for group, source in (request.state_columns or {}).items():
            n, table = self.memory.block_tokens[group], request.tables[group]
            aligned = request.computed // n * n
            bias, target = aligned - first, aligned // n - 1
            if bias < 0:
                continue
            if source == target:
                request.accepted = 1
            for layer in self.memory.groups[group] if source != target or bias else ():
                self._require(request, layer, table[target], target)
                layer.move_state(table, source, target, bias)

    # ---- draft layers

    def skips(self, steps: list[Step]) -> bool:
        """As `_input_fits_in_drafter` of vLLM's first runner: one sequence is too long."""
        ends = [step.end + self.speculation.drafts for step in steps]
        return self.runner.version == 1 and max(ends, default=0) > MAX_MODEL_LEN

    def skip(self, step: Step) -> None:
        """Nothing is written, and all drafts are zeros."""
        request = step.request
        request.proposed = [0] * self.speculation.drafts if step.sampled else []
        for group in self._groups:
            n, table = self.memory.block_tokens[group], request.tables[group]
            self.unwritten |= {
                (group, table[position // n], position % n)
                for position in range(step.start, request.computed)
            }

    def loaded(self, tables: list[list[int]]) -> None:
        """The connector writes these blocks, by group."""
        self.unwritten = {place for place in self.unwritten if place[1] not in tables[place[0]]}

    @property
    def _groups(self) -> list[int]:
        """Groups with draft layers."""
        groups = enumerate(self.memory.groups)
        return [group for group, layers in groups if any(layer.drafts for layer in layers)]

    def propose(self, step: Step) -> None:
        """The draft layers take in what was accepted, and write drafts behind it."""
        request = step.request
        for group, layers in enumerate(self.memory.groups):
            for layer in layers:
                if layer.drafts:
                    self._fill(step, group, layer)
                    self._check(request, group, layer)
        request.proposed = []
        if step.sampled:
            padded = self.runner.version == 2
            request.proposed = self.speculation.propose(request.prefix, padded=padded)

    def _fill(self, step: Step, group: int, layer: LayerMemory) -> None:
        """Right bytes for what is computed for good; for drafts, behind it, others."""
        request = step.request
        ahead = self.speculation.lookahead
        digests = request.prefix.of_tokens(step.start + ahead, request.computed + ahead)
        self._write(
            request, group, layer, step.start, expand(digests, layer.key, layer.token_bytes)
        )
        last = min(max(step.end, request.computed + self.speculation.drafts), MAX_MODEL_LEN)
        guesses = [layer.key + position for position in range(request.computed, last)]
        if guesses and step.sampled:
            data = ~expand(np.array(guesses, dtype=np.uint64), layer.key, layer.token_bytes)
            self._write(request, group, layer, request.computed, data)

    def _write(
        self, request: Running, group: int, layer: LayerMemory, first: int, data: Bytes
    ) -> None:
        n, table = self.memory.block_tokens[group], request.tables[group]
        positions = np.arange(first, first + len(data))
        blocks = [table[position // n] for position in positions]
        for position, block in zip(positions, blocks, strict=True):
            self._require(request, layer, block, int(position) // n)
        layer.write_tokens(blocks, positions % n, data)
        places = zip(blocks, (positions % n).tolist(), strict=True)
        self.unwritten -= {(group, block, offset) for block, offset in places}

    def _check(self, request: Running, group: int, layer: LayerMemory) -> None:
        """All that a draft layer reads. vLLM's own cache knows a block by its tokens alone: there
        the K/V before its end may be from a request that went on with another token."""
        n, ahead = self.memory.block_tokens[group], self.speculation.lookahead
        window = self.memory.windows[group]
        first = 0 if window is None else max(0, request.computed - window)
        blocks = request.tables[group][first // n : -(-request.computed // n)]
        skipped = first // n * n
        found = layer.tokens(blocks)[first - skipped : request.computed - skipped]
        digests = request.prefix.of_tokens(first + ahead, request.computed + ahead)
        expected = expand(digests, layer.key, layer.token_bytes)
        for row in np.flatnonzero((found != expected).any(axis=1)):
            position = first + int(row)
            block = request.tables[group][position // n]
            if (group, block, position % n) in self.unwritten:
                continue  # vLLM's own loss
            hashed = (position + 1) % (self.memory.hash_tokens or n) == 0
            if ahead and hashed and position < request.local:
                other = expand([digest_of(found[row], layer.key)], layer.key, layer.token_bytes)
                if np.array_equal(found[row], other[0]):
                    continue
            self.runner._mismatch(
                request,
                layer,
                f"token {position} of {request.computed}, of which vLLM itself had {request.local}",
            )

    def _require(self, request: Running, layer: LayerMemory, block: int, column: int) -> None:
        if block == NULL_BLOCK:
            self.runner._mismatch(request, layer, f"block index {column} is the null block")
