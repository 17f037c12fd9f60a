"""What commands ask of a server with vLLM's OpenAI interface."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from hybrid_pages import HybridPagesError
from hybrid_pages.reply import read
from hybrid_pages.scrape import base_of

_SECONDS = 600.0
"""The longest wait for an answer: other requests may be before it."""
_MOST_SAID = 300


class ServedModelError(HybridPagesError, OSError):
    """A server cannot be reached, or does not do what is asked of it."""


class RefusedError(ServedModelError):
    """A server refuses one request."""


class ServedModel:
    """A model or an adapter that a server serves.

    Args:
        url: the address that the server listens on.
        key: its API key; empty for none.
        model: the name of the model or the adapter; by default the first that it serves.
        left: how many seconds are left for a request; raises if none are.

    Raises:
        ServedModelError: it can't be reached, or serves no such model; no header can hold the key.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        model: str = "",
        left: Callable[[], float] = lambda: _SECONDS,
    ) -> None:
        self.base, self._key, self._left = base_of(url), key, left
        # What refuses such a header would print it.
        if not all("!" <= letter <= "~" for letter in key):
            raise ServedModelError(
                "VLLM_API_KEY: expected printable ASCII in one line, found white space or other "
                "letters: set it without a line's end"
            )
        if not self.base.startswith(("http://", "https://")):
            raise ServedModelError(
                f"{self.base}: expected an address that begins with http:// or https://: name the "
                "one that `vllm serve` listens on, such as http://localhost:8000"
            )
        served = self.ask("/v1/models").get("data")
        models = [it for it in served if isinstance(it, dict)] if isinstance(served, list) else []
        cards = {str(it.get("id")): it for it in models}
        if not cards or (model and model not in cards):
            raise ServedModelError(
                f"{self.base}/v1/models: expected {model or 'a model'}, found "
                f"{', '.join(cards) or 'none'}: name one of those"
            )
        self.model = model or next(iter(cards))
        card = cards[self.model]
        # An adapter takes what its model takes.
        of_model = cards.get(str(card.get("parent")), card)
        most = card.get("max_model_len") or of_model.get("max_model_len")
        self.most_tokens = most if isinstance(most, int) else None
        """The longest prompt with its answer; None if it has not told yet."""

    def tokens(self, body: Mapping[str, Any]) -> list[int]:
        """The tokens of a prompt or a chat.

        Raises:
            ServedModelError: the server does not tell; :class:`RefusedError` for this text alone.
        """
        said = self.ask("/tokenize", {"model": self.model, **body})
        tokens, most = said.get("tokens"), said.get("max_model_len")
        if self.most_tokens is None and isinstance(most, int):
            self.most_tokens = most
        if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
            raise ServedModelError(f"{self.base}/tokenize: expected a list of tokens, found none")
        return tokens

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """What the server answers: to a GET, or with a body to a POST.

        seconds: the longest wait for the whole answer; by default what is left.

        Raises:
            ServedModelError: names the address and what to do.
        """
        address, within = self.base + path, self._left() if seconds is None else seconds
        request = urllib.request.Request(
            address,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        try:
            said = json.loads(read(request, within))
        except urllib.error.HTTPError as error:
            raise _refusal(address, error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            if seconds is None:
                self._left()
            reason = getattr(error, "reason", None) or error
            raise ServedModelError(
                f"{address}: cannot be read ({reason}): start the server, or name the address that "
                "`vllm serve` listens on with --url"
            ) from None
        if not isinstance(said, dict):
            raise ServedModelError(f"{address}: expected an object, found {type(said).__name__}")
        return said


def _refusal(address: str, error: urllib.error.HTTPError) -> ServedModelError:
    if error.code in (401, 403):
        return ServedModelError(
            f"{address}: the server asks for a key (status {error.code}): set VLLM_API_KEY to it"
        )
    if error.code in (404, 405):
        said = _said(error)
        return ServedModelError(
            f"{address}: expected vLLM's OpenAI server, found status {error.code}"
            f"{f' ({said})' if said else ''}: name the address that `vllm serve` listens on"
        )
    kind = RefusedError if error.code < 500 else ServedModelError
    return kind(f"{address}: status {error.code}: {_said(error) or error.reason}")


def _said(error: urllib.error.HTTPError) -> str:
    """The message of an error, in one line."""
    try:
        said = json.loads(error.read(1 << 16))
        inner = said.get("error", said)
        message = str(inner.get("message", "") if isinstance(inner, dict) else inner)
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return ""
    line = " ".join(message.split())
    return line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}..."
