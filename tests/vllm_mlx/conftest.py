"""Tests of vllm-mlx, with the models and the cases of the tests of mlx-lm."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "mlx"))

from made import models, tokenizer  # noqa: F401
