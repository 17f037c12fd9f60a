"""The README's code that needs torch runs; the rest does in `tests/python/test_docs.py`."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_code_of_the_readme_that_needs_torch_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    needing = [code for code in blocks if "import torch" in code]
    assert needing
    for code in needing:
        exec(compile(code, "README.md", "exec"), {})
