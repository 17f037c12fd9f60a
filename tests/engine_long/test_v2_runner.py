"""The default path on GPUs: the second model runner, asynchronous scheduling."""

import pytest

from harness import Engine
from test_families import (  # noqa: F401  (the same proofs, on this module's engines)
    nothing_fails,
    test_a_prompt_of_whole_blocks_recomputes_the_last_one,
    test_an_extension_restores_what_vllm_would_hit,
    test_eight_at_once_are_stored_and_restored,
    test_scheduling_is_asynchronous,
    test_the_first_resend_restores_every_full_block,
    test_the_next_turn_of_a_conversation_restores_what_vllm_would_hit,
    test_zeroed_entries_show,
)


@pytest.fixture(scope="module", params=["granite4", "lfm2", "falcon-h1", "nemotron-h", "qwen3.5"])
def engine(request, start):
    return start(request.param)


def test_the_runner_is_the_second_one(engine: Engine):
    # Its modules hold vLLM's functions from their import on: not before the harness has come.
    from vllm.v1.worker.cpu.model_runner import CPUModelRunner

    assert type(engine.core.model_executor.driver_worker.worker.model_runner) is CPUModelRunner
