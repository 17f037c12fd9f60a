"""`hybrid-pages info` with an installed vLLM and torch."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
import torch

from hybrid_pages import cli


def test_info_names_the_engine_that_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["vllm"]["supported"] is True
    assert facts["vllm"]["version"] == metadata.version(facts["vllm"]["distribution"])
    assert torch.__version__.startswith(facts["torch"])
    assert cli.main(["info"]) == 0
    assert "supported" in capsys.readouterr().out
