"""A restored state with which the model fails is not used a second time."""

from collections import Counter

import pytest
from vllm_mlx.request import Request, SamplingParams

import tiny
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.mlx.prompts import Prompts
from hybrid_pages.vllm_mlx import server
from hybrid_pages.vllm_mlx.batches import RowBatches


def answer(scheduler, name):
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    request = Request(request_id=name, prompt=tiny.tokens(70, 5), sampling_params=sampling)
    scheduler.add_request(request)
    for _ in range(100):
        for output in scheduler.step().outputs:
            if output.finished:
                return output.output_token_ids, request.cached_tokens
    raise AssertionError("no answer after 100 steps")


@pytest.mark.parametrize("cleared", [True, False])
def test_requests_that_fail_over_a_stored_state_are_computed_without_it(
    models, tokenizer, monkeypatch, cleared
):
    serving = server.Serving(TierSettings(0.1), 16, "tiny", lazy=False)
    model = models("qwen3_next")
    serving._prompts = prompts = Prompts(model, TierSettings(0.1), 16, Counter())
    if not cleared:
        monkeypatch.setattr(prompts, "clear", lambda: None)
    real = RowBatches._next

    def step(batches):
        if any(row.seen for row in batches._rows.values()):
            raise TypeError("'NoneType' object is not subscriptable")
        return real(batches)

    with server.replaced(serving):
        scheduler = serving.scheduler(model, tokenizer)
        first, _ = answer(scheduler, "first")
        monkeypatch.setattr(RowBatches, "_next", step)
        if cleared:
            assert answer(scheduler, "second") == (first, 0)
        else:
            with pytest.raises(TypeError, match="NoneType"):
                answer(scheduler, "second")
        scheduler.reset()
