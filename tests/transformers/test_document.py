"""The code of docs/transformers.md runs."""

import re
from pathlib import Path

import tiny

DOCUMENT = Path(__file__).parents[2] / "docs" / "transformers.md"


def test_the_code_of_the_document_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert blocks
    # What the reader has: a model on its device, and a prompt of some blocks.
    names = {"model": tiny.make("qwen3.5"), "input_ids": tiny.tokens(200, seed=1)}
    for code in blocks:
        exec(compile(code, str(DOCUMENT), "exec"), names)
    assert "192 tokens restored" in capsys.readouterr().out
