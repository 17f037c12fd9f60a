"""One rank's model runner, simulated: vLLM's order of work, without its kernels.

The order follows `gpu_model_runner.py` (version 1) and `gpu/model_runner.py` (version 2): states
move to the running block, every layer writes this step's tokens and reads its context, states
advance, and only then does the connector load and store.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from .drafting import Drafting
from .function import Origin, Prefix, digest_of, expand, next_token
from .memory import LayerMemory, Memory
from .speculation import UNKNOWN, Speculation

NULL_BLOCK = 0


class Mismatch(AssertionError):
    """A byte that a step read is not what the request's tokens say it must be."""


@dataclass
class Running:
    """A request as the worker knows it; its block tables only ever grow, as the real one's do."""

    request_id: str
    prefix: Prefix
    tables: list[list[int]]
    computed: int
    prompt_tokens: int
    state_columns: dict[int, int] | None = None
    """By recurrent group, where its state is."""
    accepted: int = 1
    """Tokens of the last step that were kept: the first one, and drafts."""
    proposed: list[int] = field(default_factory=list)
    """Drafts for the next step."""
    local: int = 0
    """Leading tokens that vLLM's own cache had."""


@dataclass
class Step:
    """One step of one request."""

    request: Running
    scheduled: int
    drafts: list[int]
    """Its last tokens, which may turn out wrong."""
    sampled: list[int] = field(default_factory=list)
    start: int = field(init=False)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.request.computed
        self.end = self.start + self.scheduled


@dataclass
class Runner:
    """A rank: its memory, its worker half of the connector, its requests."""

    rank: int
    memory: Memory
    connector: KVConnectorBase_V1 | None
    origins: Mapping[str, Origin]
    """Everything that each request's bytes depend on beyond its tokens."""
    version: int = 1
    speculation: Speculation | None = None
    asynchronous: bool = False
    external: Mapping[str, int] = field(default_factory=dict)
    """Tokens that each request has from the connector."""
    steps: int = 0
    requests: dict[str, Running] = field(default_factory=dict)
    garbage: set[int] = field(default_factory=set)
    """Blocks that another connector could not load, or that were computed from such ones."""

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Runs one step and returns what the scheduler is told of it."""
        self.steps += 1
        if self.connector is not None and self.version == 1:
            self.connector.handle_preemptions(output.kv_connector_metadata)
        self._prepare_blocks(output)
        self._update_requests(output)
        if self.connector is None:
            return self._result(self._finish(self._forward(output)), None)
        if self.version == 2:
            self.connector.handle_preemptions(output.kv_connector_metadata)
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        if output.has_sync_kv_loads:
            self.connector.start_load_kv(None)
        self.garbage |= self._invalid()
        steps = self._forward(output)
        # With drafts, stores start behind drafting. Only the second runner of vLLM 0.32 collects
        # what has ended after that; the others do so before.
        late = self.speculation is not None and bool(steps)
        collects_last = self.version == 2 and vllm.__version__.startswith("0.32.")
        if late and collects_last:
            self._finish(steps)
        if not output.has_sync_kv_loads:
            self.connector.start_load_kv(None)
        if not late or collects_last:
            self.connector.wait_for_save()
        results = self.connector.get_transfer_results(output.finished_req_ids)
        report = KVConnectorOutput(
            finished_sending=results.finished_sending or None,
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving,
            invalid_block_ids=self.connector.get_block_ids_with_load_errors(),
            kv_connector_stats=self.connector.get_kv_connector_stats(),
            kv_cache_events=self.connector.get_kv_connector_kv_cache_events(),
            kv_connector_worker_meta=self.connector.build_connector_worker_meta(),
        )
        if not late or not collects_last:
            self._finish(steps)
        if late and not collects_last:
            self.connector.wait_for_save()
        self.connector.clear_connector_metadata()
        return self._result(steps, report)

    def dummy(self) -> None:
        """A pass without requests, for the other ranks of a mixture of experts.

        Neither runner calls the connector for it. Attention writes nothing (slots of -1), and
        recurrent layers write to the null block: version 2 zeroes its block tables, in version 1
        no request is left in the batch.
        """
        if self.connector is not None:
            assert not self.connector.has_connector_metadata(), "metadata of an earlier step"
        for group in self._recurrent_groups():
            for layer in self.memory.groups[group]:
                layer.live[NULL_BLOCK] = layer.shadow[NULL_BLOCK] = 0xDD

    @staticmethod
    def _result(steps: list[Step], report: KVConnectorOutput | None) -> ModelRunnerOutput:
        return ModelRunnerOutput(
            req_ids=[step.request.request_id for step in steps],
            req_id_to_index={step.request.request_id: i for i, step in enumerate(steps)},
            sampled_token_ids=[step.sampled for step in steps],
            kv_connector_output=report,
        )

    @property
    def lookahead(self) -> int:
        """Tokens behind a position that its K/V in draft layers depends on."""
        return 0 if self.speculation is None else self.speculation.lookahead

    def take_drafts(self, names: Sequence[str]) -> list[list[int]]:
        """What the scheduler is told of the drafts, if it plans the next step after this one."""
        return [list(self.requests[name].proposed) for name in names]

    # ---- before the forward pass

    def _prepare_blocks(self, output: SchedulerOutput) -> None:
        if output.new_block_ids_to_zero:
            self.memory.zero(output.new_block_ids_to_zero)
        for source, destination in output.kv_cache_block_copies or ():
            self.memory.copy_block(source, destination)

    def _update_requests(self, output: SchedulerOutput) -> None:
        for request_id in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            if request_id in output.finished_req_ids or self.version == 2:
                self.requests.pop(request_id, None)
            elif request_id in self.requests:
                self._start_anew(self.requests[request_id])
        for new in output.scheduled_new_reqs:
            self._add(new)
        self._continue(output.scheduled_cached_reqs)

    def _add(self, new: NewRequestData) -> None:
        assert new.req_id not in self.requests, f"{new.req_id} is already on the worker"
        tokens = new.prefill_token_ids or new.prompt_token_ids
        self.requests[new.req_id] = Running(
            request_id=new.req_id,
            prefix=Prefix(self.origins[new.req_id], tokens),
            tables=[list(ids) for ids in new.block_ids],
            computed=new.num_computed_tokens,
            prompt_tokens=len(new.prompt_token_ids),
            local=new.num_computed_tokens - self.external.get(new.req_id, 0),
        )

    @staticmethod
    def _start_anew(request: Running) -> None:
        request.state_columns, request.accepted, request.proposed = None, 1, []

    def _continue(self, cached: CachedRequestData) -> None:
        for i, request_id in enumerate(cached.req_ids):
            request = self.requests[request_id]
            resumed = request_id in cached.resumed_req_ids
            self._set_computed(request, cached.num_computed_tokens[i], resumed)
            request.prefix.truncate(request.prompt_tokens + cached.num_output_tokens[i])
            blocks = cached.new_block_ids[i]
            if resumed:
                known = cached.all_token_ids[request_id]
                assert known == request.prefix.tokens, f"{request_id} resumes with other tokens"
                request.tables = [list(ids) for ids in blocks]
                request.local = request.computed - self.external.get(request_id, 0)
                self._start_anew(request)
            elif blocks is not None:
                for table, ids in zip(request.tables, blocks, strict=True):
                    table.extend(ids)

    def _set_computed(self, request: Running, told: int, resumed: bool) -> None:
        """What the scheduler tells is right, but for drafts of a step that it has no report of."""
        if self.speculation is None or resumed or not self.asynchronous:
            assert self.speculation is None or resumed or told == request.computed
            request.computed = told
        else:
            assert request.computed <= told, (request.request_id, request.computed, told)

    def _invalid(self) -> set[int]:
        """Blocks of this step that siblings of the simulation have failed to load."""
        children = getattr(self.connector, "sub_connectors", ())
        return set().union(*(getattr(child, "invalid", ()) for child in children))

    # ---- the forward pass

    def _forward(self, output: SchedulerOutput) -> list[Step]:
        steps = [
            self._step(self.requests[key], n, output)
            for key, n in output.num_scheduled_tokens.items()
        ]
        work = [(step.request, step.scheduled) for step in steps]
        wrong = self._spoil(work)
        for step in steps:
            self._move_states(step.request, step.scheduled)
        for group, layers in enumerate(self.memory.groups):
            for layer in layers:
                if layer.drafts:
                    continue
                if self.memory.rings[group]:
                    for request, scheduled in work:
                        self._turn(request, group, layer, scheduled)
                elif not self.memory.recurrent[group]:
                    self._attend(work, wrong, group, layer, self.memory.windows[group])
                elif layer.form is None:
                    for request, scheduled in work:
                        self._advance(request, group, layer, scheduled)
                else:
                    for step in steps:
                        self.drafting.advance(step, group, layer)
        for step in steps:
            self._sample(step)
        return steps

    def _step(self, request: Running, scheduled: int, output: SchedulerOutput) -> Step:
        """A step of a request; the drafts that it verifies are among its tokens until it ends."""
        named = output.scheduled_spec_decode_tokens.get(request.request_id, [])
        drafts = list(named)
        if self.asynchronous and named:
            drafts = (request.proposed + [UNKNOWN] * len(named))[: len(named)]
        for token in drafts:
            request.prefix.append(token)
        step = Step(request, scheduled, drafts)
        assert not drafts or step.end == len(request.prefix), (request.request_id, step.end)
        return step

    def _finish(self, steps: list[Step]) -> list[Step]:
        """What comes behind sampling: states move to their boundaries, and drafts are made."""
        if self.speculation is not None:
            for step in steps:
                self.drafting.settle(step)
            drafts = self.drafting.skip if self.drafting.skips(steps) else self.drafting.propose
            for step in steps:
                drafts(step)
        return steps

    @functools.cached_property
    def drops_last_block(self) -> bool:
        return self.speculation is not None and self.speculation.lookahead > 0

    @functools.cached_property
    def drafting(self) -> Drafting:
        return Drafting(self)

    def _spoil(self, work: list[tuple[Running, int]]) -> set[str]:
        """Requests that attend to garbage which no other request rewrites in this step; what they
        write is garbage, too. Models of one group alone have such requests."""
        n, wrong = self.memory.block_tokens[0], {request.request_id for request, _ in work}
        while self.garbage:
            right = {
                request.request_id
                for request, _ in work
                if self.garbage.isdisjoint(request.tables[0][: -(-request.computed // n)])
            }
            for request, scheduled in work:
                if request.request_id in right:
                    end = -(-(request.computed + scheduled) // n)
                    self.garbage.difference_update(request.tables[0][request.computed // n : end])
            if wrong == (wrong := wrong - right):
                break
        else:
            return set()
        for request, scheduled in work:
            if request.request_id in wrong:
                end = -(-(request.computed + scheduled) // n)
                self.garbage.update(request.tables[0][request.computed // n : end])
        return wrong

    def _recurrent_groups(self) -> list[int]:
        return [group for group, recurrent in enumerate(self.memory.recurrent) if recurrent]

    def _move_states(self, request: Running, scheduled: int) -> None:
        """Copies the states that a step starts from into the block it will end in."""
        groups = self._recurrent_groups()
        if not groups:
            return
        columns, request.state_columns = request.state_columns, {}
        bias = request.accepted - 1
        for group in groups:
            n, table = self.memory.block_tokens[group], request.tables[group]
            previous = (request.computed - 1) // n if columns is None else columns[group]
            current = -(-(request.computed + scheduled) // n) - 1
            request.state_columns[group] = current
            if previous not in (-1, current):
                request.accepted = 1
                for layer in self.memory.groups[group]:
                    layer.move_state(table, previous, current, bias)

    def _attend(
        self,
        work: list[tuple[Running, int]],
        wrong: set[str],
        group: int,
        layer: LayerMemory,
        window: int | None,
    ) -> None:
        """Writes every request's new tokens, then checks all that their attention reads."""
        per_state = self.memory.tokens_per_state[group]
        n = self.memory.block_tokens[group] // per_state
        for request, scheduled in work:
            start, end = (
                count // per_state for count in (request.computed, request.computed + scheduled)
            )
            positions = np.arange(start, end)
            blocks = np.asarray(request.tables[group])[positions // n]
            self._require_blocks(request, layer, blocks.tolist(), start // n)
            digests = request.prefix.of_states(start, end, per_state)
            data = expand(digests, layer.key, layer.token_bytes)
            if request.request_id in wrong:
                data = ~data
            layer.write_tokens(blocks.tolist(), positions % n, data)
        for request, scheduled in work:
            if request.request_id in wrong:
                continue
            end = (request.computed + scheduled) // per_state
            first = 0 if window is None else max(0, request.computed - window + 1)
            blocks = request.tables[group][first // n : -(-end // n)]
            self._require_blocks(request, layer, blocks, first // n)
            skipped = first // n * n
            digests = request.prefix.of_states(first, end, per_state)
            expected = expand(digests, layer.key, layer.token_bytes)
            token = layer.other_token(blocks, first - skipped, expected)
            if token is not None:
                block = (first + token) // n
                self._mismatch(
                    request,
                    layer,
                    f"token {first + token} of the {request.computed} computed and {scheduled} "
                    f"new ones, block {request.tables[group][block]} (index {block})",
                )

    def _turn(self, request: Running, group: int, layer: LayerMemory, scheduled: int) -> None:
        """Reads the tokens that are not yet compressed from a ring, then writes this step's."""
        (block,), n = request.tables[group], self.memory.block_tokens[group]
        self._require_blocks(request, layer, [block], 0)
        start, end = request.computed, request.computed + scheduled
        compressed = start // (states := max(self.memory.tokens_per_state)) * states
        pending = np.arange(compressed, start)
        found = layer.tokens([block])[pending % n]
        digests = request.prefix.of_tokens(compressed, start)
        if not np.array_equal(found, expand(digests, layer.key, layer.token_bytes)):
            self._mismatch(request, layer, f"the tokens of a ring before token {start}")
        written = np.arange(max(start, end - n), end)
        digests = request.prefix.of_tokens(max(start, end - n), end)
        data = expand(digests, layer.key, layer.token_bytes)
        layer.write_tokens([block] * len(written), written % n, data)

    def _advance(self, request: Running, group: int, layer: LayerMemory, scheduled: int) -> None:
        """Reads the state before the step, checks it, writes the state after the step."""
        column = request.state_columns[group]
        block = request.tables[group][column]
        self._require_blocks(request, layer, [block], column)
        size = layer.token_bytes
        if request.computed:
            expected = expand([request.prefix.after(request.computed)], layer.key, size)[0]
            found = layer.other_state(block, expected)
            if found is not None:
                self._mismatch(
                    request,
                    layer,
                    f"the state after {request.computed} tokens, block {block}: "
                    f"{self._describe_state(request, layer, found)}",
                )
        end = request.computed + scheduled
        layer.write_state(block, expand([request.prefix.after(end)], layer.key, size)[0])
        self._export(request, group, layer, end)

    def _export(self, request: Running, group: int, layer: LayerMemory, end: int) -> None:
        """Writes a state from inside the step where vLLM's own rule says that kernels do."""
        alignment = self.memory.export_alignments[group]
        if alignment is None:
            return
        (offset,), (column,) = compute_mamba_prefill_checkpoints(
            [end],
            [end - request.computed],
            hash_block_size=self.memory.hash_tokens,
            mamba_block_size=self.memory.block_tokens[group],
            checkpoint_alignment=alignment,
            drop_eagle_block=self.drops_last_block,
            cache_hit_alignment_tokens=self.memory.hit_tokens,
        )
        block = request.tables[group][column] if offset else NULL_BLOCK
        if block != NULL_BLOCK:
            after = request.computed + offset
            if layer.form is not None:
                layer.write_state(block, layer.form.at(request.prefix, after, layer.key))
                return
            digest = request.prefix.after(after)
            layer.write_state(block, expand([digest], layer.key, layer.token_bytes)[0])

    def _describe_state(self, request: Running, layer: LayerMemory, found: Any) -> str:
        """Which of this request's states the bytes are, if any."""
        digest = digest_of(found, layer.key)
        for count in range(len(request.prefix) + 1):
            if request.prefix.after(count) == digest:
                return f"found the state after {count} tokens"
        return f"found bytes of no state of this request, starting {found[:8].tolist()}"

    def _require_blocks(
        self, request: Running, layer: LayerMemory, blocks: list[int], first: int
    ) -> None:
        if NULL_BLOCK in blocks:
            index = first + blocks.index(NULL_BLOCK)
            self._mismatch(request, layer, f"block index {index} is the null block")

    def _mismatch(self, request: Running, layer: LayerMemory, what: str) -> None:
        raise Mismatch(
            f"step {self.steps}, rank {self.rank}, request {request.request_id}, "
            f"layer {layer.name}: {what}"
        )

    def _sample(self, step: Step) -> None:
        """The next tokens, out of the memory that the step has just written: one behind the last
        draft that is right."""
        request = step.request
        first = step.end - len(step.drafts)
        if first == len(request.prefix) - len(step.drafts):
            for accepted in range(len(step.drafts) + 1):
                token = next_token(self._last_digest(request, first + accepted))
                step.sampled.append(token)
                if accepted == len(step.drafts) or token != step.drafts[accepted]:
                    break
            request.prefix.truncate(first + len(step.sampled) - 1)
            request.prefix.append(step.sampled[-1])
        request.accepted = max(len(step.sampled), 1)
        request.computed = first + request.accepted - 1

    def _last_digest(self, request: Running, end: int) -> int:
        group, layer = self._telling
        n = self.memory.block_tokens[group]
        block = request.tables[group][(end - 1) // n]
        if self.memory.recurrent[group]:
            return digest_of(layer.state(block), layer.key)
        offset = np.array((end - 1) % n)
        if layer.shard is not None:
            if not layer.shard.keeps(offset):  # the rank that has it tells the others
                return int(request.prefix.of_tokens(end - 1, end)[0])
            offset = layer.shard.place(offset)
        return digest_of(layer.tokens([block])[offset], layer.key)

    @functools.cached_property
    def _telling(self) -> tuple[int, LayerMemory]:
        """The last layer of the model that keeps something of each token, which tells the next one;
        with drafts, one with pages."""
        memory = self.memory
        return [
            (group, layer)
            for group, layers in enumerate(memory.groups)
            for layer in layers
            if memory.tokens_per_state[group] == 1 and not memory.rings[group]
            if not layer.drafts and (self.speculation is None or not memory.recurrent[group])
        ][-1]
