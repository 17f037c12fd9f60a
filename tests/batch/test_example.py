"""The example runs, what it prints is so, and it notices texts that are wrong."""

import json
import runpy
from pathlib import Path

import pytest

from hybrid_pages.batch import Batch

EXAMPLE = Path(__file__).parents[2] / "examples" / "continuous_batching.py"


def run(*words):
    runpy.run_path(str(EXAMPLE))["main"](["--runs=1", *words])


def test_texts_of_continuous_batching_equal_those_of_each_request_alone(capsys):
    run("--json", "--requests=6", "--rows=3")
    report = json.loads(capsys.readouterr().out)
    assert report["texts_equal"] is True
    assert (report["requests"], report["rows"]) == (6, 3)
    assert set(report["tokens_per_second"]) == {"one_by_one", "batched", "batched_with_reuse"}
    # Two beginnings: the first request of each computes it, the others restore it.
    assert report["hits"] == 4
    assert 0 < report["restored_tokens"] < report["prompt_tokens"]


def test_rows_that_are_mixed_up_end_the_example(monkeypatch):
    merge = Batch.merge
    monkeypatch.setattr(Batch, "merge", staticmethod(lambda batches: merge(batches[::-1])))
    with pytest.raises(AssertionError, match="expected the texts of each request alone"):
        run("--requests=4", "--rows=3")
