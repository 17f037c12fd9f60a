"""What ``hybrid-pages warm`` asks of a server: tokens, and answers of one token."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_pages.served import ServedModel


@dataclass(frozen=True)
class Served:
    """How a prompt was served."""

    cached: int | None
    """Its tokens that were not computed; None if the server does not tell."""
    seconds: float


class Server(ServedModel):
    """A served model, with the ``cache_salt`` of requests.

    Args:
        url: see :class:`ServedModel`, as for ``key`` and ``model``.
        key: its API key; empty for none.
        model: the name of a model or an adapter; by default the first that it serves.
        salt: the ``cache_salt`` of requests; empty for none.

    Raises:
        ServedModelError: it can't be reached, or serves no such model.
    """

    def __init__(self, url: str, *, key: str = "", model: str = "", salt: str = "") -> None:
        super().__init__(url, key=key, model=model)
        self._salt = salt

    def of_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return self.tokens({"prompt": text})

    def of_chat(
        self, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any], *, answers: bool
    ) -> list[int]:
        """The tokens of a chat, as the server's template renders it.

        more: tools, and what else the template gets. answers: whether the next message is the
        model's.
        """
        return self.tokens({"messages": list(messages), **more, "add_generation_prompt": answers})

    def serve(self, tokens: Sequence[int], hints: Mapping[str, Any]) -> Served:
        """Has a prompt computed, and one token after it."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
            "kv_transfer_params": {"hybrid_pages": dict(hints)},
        }
        if self._salt:
            body["cache_salt"] = self._salt
        began = time.monotonic()
        usage = self.ask("/v1/completions", body).get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Served(cached if isinstance(cached, int) else None, time.monotonic() - began)
