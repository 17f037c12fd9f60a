"""The setting ``encrypt_key``: where the keys that encrypt entries below the host come from.

The text of a key file is read when a tier is opened, and kept nowhere in Python.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from hybrid_pages._core import InvalidArgumentError, encrypt_key_id
from hybrid_pages.adapter.errors import SettingsError

_VARIABLE = "env:"
_MOST_BYTES = 64 << 20


def require_encryption(encrypt_key: str, disk_path: str, remote_url: str) -> None:
    """Rejects keys without a place below the host, and a place that cannot be encrypted.

    Raises:
        SettingsError: names the settings.
    """
    if encrypt_key and not (disk_path or remote_url):
        raise SettingsError(
            "encrypt_key: expected disk_path or remote_url beside it, found neither: host memory "
            "is not encrypted, so name a place or leave it out"
        )
    if encrypt_key and urlsplit(remote_url).scheme == "mooncake":
        raise SettingsError(
            "encrypt_key: expected a store that takes encrypted entries, found remote_url "
            f"{remote_url!r}: Mooncake copies straight from host memory; name another store, or "
            "leave encrypt_key out"
        )


def read_keys(encrypt_key: str) -> str:
    """The text of the key file, or of the environment variable after ``env:``; empty for none.

    Raises:
        SettingsError: it cannot be read, or holds no keys; what is in it is not repeated.
    """
    if not encrypt_key:
        return ""
    text = _text(encrypt_key)
    try:
        encrypt_key_id(text)
    except InvalidArgumentError as error:
        said = str(error).removeprefix("invalid argument: ")
        raise SettingsError(f"{said} (in {encrypt_key!r})") from None
    return text


def _text(encrypt_key: str) -> str:
    if encrypt_key.startswith(_VARIABLE):
        name = encrypt_key.removeprefix(_VARIABLE)
        text = os.environ.get(name, "")
        if not text:
            raise SettingsError(
                f"encrypt_key: expected keys in the environment variable {name!r}, found none: set "
                "it for the engine's process"
            )
        return text
    try:
        with open(encrypt_key, "rb") as file:
            read = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"encrypt_key: expected a key file, or env: and the name of a variable, found "
            f"{encrypt_key!r}: {error}"
        ) from None
    if len(read) > _MOST_BYTES:
        raise SettingsError(
            f"encrypt_key: expected a file of at most {_MOST_BYTES} bytes, found more in "
            f"{encrypt_key!r}"
        )
    return read.decode("utf-8", "replace")
