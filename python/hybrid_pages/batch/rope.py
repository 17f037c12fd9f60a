"""Whether rows can share a step of a model whose rotary frequencies depend on the longest row.

A step takes its frequencies from its largest position (`dynamic_rope_update` of transformers). With
"longrope" they are the long ones beyond the original length; with "dynamic", those of that length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_pages._core import InvalidArgumentError


def check_frequencies(config: Any, lengths: Sequence[int]) -> None:
    """Rejects rows of which one's next token would have other frequencies than it has alone."""
    config = config.get_text_config(decoder=True)
    given = getattr(config, "rope_parameters", None) or {}
    shortest, longest = min(lengths) + 1, max(lengths) + 1
    # Either the parameters of all layers, or those of each type of layers.
    for parameters in (given, *given.values()):
        kind = parameters.get("rope_type", "") if isinstance(parameters, Mapping) else ""
        if kind == "longrope":
            limit = parameters["original_max_position_embeddings"]
            if shortest <= limit < longest:
                raise InvalidArgumentError(
                    f"longrope: expected rows that all have at most {limit} tokens with the next "
                    f"one, or all more, found lengths {list(lengths)}; split the batch"
                )
        elif "dynamic" in kind:
            limit = config.max_position_embeddings
            # A step of exactly the limit keeps frequencies that a longer text has left.
            if shortest < longest and longest >= limit:
                raise InvalidArgumentError(
                    f"dynamic rope: expected rows of one length, or of less than {limit} tokens "
                    f"with the next one, found lengths {list(lengths)}; split the batch"
                )
