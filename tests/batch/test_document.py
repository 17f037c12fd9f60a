"""The code of docs/batch.md runs."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "batch.md"


def test_the_code_of_the_document_runs():
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert blocks
    for code in blocks:
        exec(compile(code, str(DOCUMENT), "exec"), {})
