"""The setting ``encrypt_key``: where the keys that encrypt entries below the host come from.

The text of a key file is read when a tier is opened, and kept nowhere in Python.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import stat
from urllib.parse import urlsplit

from hybrid_pages._core import InvalidArgumentError, encrypt_key_ids
from hybrid_pages.adapter.errors import SettingsError

VARIABLE = "env:"
"""What the name of an environment variable follows, in the place of a file."""
_MOST_BYTES = 64 << 20
_LIKE_A_KEY = re.compile(r"[\r\n]|^(?!/).*[0-9A-Za-z+/=\s-]{32}", re.DOTALL)
_BYTE_ORDER_MARKS = codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE


def shown(value: object, setting: str = "encrypt_key") -> str:
    """The value of a setting, for an error.

    Somebody may have given the keys themselves in the place of their file or variable, so of
    ``encrypt_key`` only an absolute path, or what has no place for a key, is repeated.
    """
    if setting != "encrypt_key":
        return repr(value)
    if not isinstance(value, str):
        return "something"
    return "what may be a key and is not repeated" if _LIKE_A_KEY.search(value) else repr(value)


def key_setting(given: str | os.PathLike[str] | None) -> str:
    """The setting as somebody gave it; empty if it was left out.

    Raises:
        SettingsError: it was given, but empty, as by a template without a value: entries would be
            written in the clear.
    """
    if given is None:
        return ""
    if isinstance(given, str) and not given.strip():
        raise SettingsError(
            "encrypt_key: expected a key file, or env: and the name of a variable, found "
            f"{given!r}: leave it out to encrypt nothing"
        )
    return os.fspath(given) if isinstance(given, os.PathLike) else given


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
    read = _read(encrypt_key)
    if read.startswith(_BYTE_ORDER_MARKS):
        raise SettingsError(
            "encrypt_key: expected plain UTF-8, found a byte order mark at the start of "
            f"{shown(encrypt_key)}: save it as UTF-8 without one"
        )
    text = read.decode("utf-8", "replace")
    try:
        encrypt_key_ids(text)
    except InvalidArgumentError as error:
        said = str(error).removeprefix("invalid argument: ")
        raise SettingsError(f"{said} (in {shown(encrypt_key)})") from None
    return text


def exposed_keys(encrypt_key: str) -> str:
    """Says that others than its owner may use the key file; empty if not, and without a file."""
    if not encrypt_key or encrypt_key.startswith(VARIABLE):
        return ""
    try:
        mode = stat.S_IMODE(os.stat(encrypt_key).st_mode)
    except (OSError, ValueError):
        return ""
    if not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return ""
    return (
        "encrypt_key: expected a key file for its owner alone, found the mode "
        f"{mode:04o} at {shown(encrypt_key)}"
    )


def tell_of_keys(encrypt_key: str, log: logging.Logger) -> None:
    """Logs the short names of the keys, and :func:`exposed_keys`, if there is anything to say."""
    if not encrypt_key:
        return
    key, file = encrypt_key_ids(read_keys(encrypt_key))
    log.info("encrypt_key: the key %s, in the key file %s", key, file)
    if found := exposed_keys(encrypt_key):
        log.warning("%s: take the permissions of others away: chmod 600", found)


def _read(encrypt_key: str) -> bytes:
    if encrypt_key.startswith(VARIABLE):
        text = os.environ.get(encrypt_key.removeprefix(VARIABLE), "")
        if not text:
            raise SettingsError(
                f"encrypt_key: expected keys in an environment variable, found none for "
                f"{shown(encrypt_key)}: set it for the engine's process"
            )
        return text.encode("utf-8", "replace")  # other bytes than text are surrogates
    try:
        # It is read more than once, and opening a pipe could wait forever.
        is_file = stat.S_ISREG(os.stat(encrypt_key).st_mode)
        read = b""
        if is_file:
            with open(encrypt_key, "rb") as file:
                read = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(
            f"encrypt_key: expected a key file, or env: and the name of a variable, found "
            f"{shown(encrypt_key)}: {why}"
        ) from None
    if not is_file:
        raise SettingsError(
            f"encrypt_key: expected a key file, found {shown(encrypt_key)}, which is a directory, "
            "a pipe or a device: name a file"
        )
    if len(read) > _MOST_BYTES:
        raise SettingsError(
            f"encrypt_key: expected a file of at most {_MOST_BYTES} bytes, found more in "
            f"{shown(encrypt_key)}"
        )
    return read
