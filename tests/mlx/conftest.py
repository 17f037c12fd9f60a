"""Tests of mlx-lm."""

from made import models, tokenizer  # noqa: F401
