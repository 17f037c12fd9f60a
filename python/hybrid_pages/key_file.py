"""``hybrid-pages key new|destroy FILE``: makes a key file, or destroys a tenant's key in one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from hybrid_pages import HybridPagesError
from hybrid_pages._core import encrypt_key_ids, without_tenant_key
from hybrid_pages.adapter.encryption import VARIABLE, read_keys, shown
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import require_named

_DIGEST = re.compile(r"[0-9A-Fa-f]{64}")


def run(args: SimpleNamespace) -> int:
    """Runs one action. Exit status 2 if the file can't be made, read or replaced."""
    try:
        require_named("FILE", args.path)
        if args.path.startswith(VARIABLE):
            raise SettingsError(
                "FILE: expected a file, found a variable: write what is in it to a file, and back"
            )
        done, text = (_new if args.action == "new" else _destroy)(args)
    except HybridPagesError as error:
        return _complain(args, str(error))
    except OSError as error:
        return _complain(args, f"{shown(args.path)}: {error.strerror or error}")
    print(json.dumps(done) if args.json else text, flush=True)
    return 0


def _complain(args: SimpleNamespace, error: str) -> int:
    print(f"hybrid-pages key {args.action}: {error}", file=sys.stderr)
    return 2


def _new(args: SimpleNamespace) -> tuple[dict[str, str], str]:
    text = f"{secrets.token_hex(32)}\ntenants {secrets.token_hex(32)}\n"
    try:
        descriptor = os.open(args.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SettingsError(
            f"FILE: expected a path where nothing is yet, found {shown(args.path)}: name another, "
            "for what is encrypted with a key in that file can't be read without it"
        ) from None
    with open(descriptor, "w") as made:
        _fill(made.fileno(), text)
    _sync_folder(Path(args.path).resolve().parent)
    key, file = encrypt_key_ids(text)
    done = {"path": args.path, "key": key, "file": file}
    return done, (
        f"{args.path}: made with the key {key}, in the key file {file}, for the setting encrypt_key"
    )


def _destroy(args: SimpleNamespace) -> tuple[dict[str, str], str]:
    if (args.salt is None) == (args.sha256 is None):
        raise SettingsError(
            "--salt: expected the tenant's cache_salt or its --sha256, found "
            f"{'neither' if args.salt is None else 'both'}: name one tenant"
        )
    digest = args.sha256 or _digest_of(args.salt)
    if not _DIGEST.fullmatch(digest):
        raise SettingsError(
            "--sha256: expected the SHA-256 of a cache_salt in 64 hexadecimal digits, found "
            "something else: see `printf %s SALT | sha256sum`"
        )
    with _alone(Path(args.path).resolve()) as old:
        text = without_tenant_key(read_keys(args.path), list(bytes.fromhex(digest)))
        _replace(old, Path(old.name), text)
    key, file = encrypt_key_ids(text)
    done = {"path": args.path, "key": key, "file": file, "tenant": digest.lower()}
    return done, (
        f"{args.path}: the key of the tenant {done['tenant']} is destroyed, and it has a new one, "
        f"in the key file {file}.\n"
        "Remove every other copy of the old file, give the new one to all engines with this key, "
        "and restart them: until then they still have the old key.\n"
        "What was written for the tenant in the clear, or before the file had a `tenants` line or "
        "a line for it, can still be read: remove it from the stores."
    )


def _digest_of(salt: str) -> str:
    try:
        return hashlib.sha256(salt.encode()).hexdigest()
    except UnicodeEncodeError:  # other bytes of a command line are surrogates
        raise SettingsError(
            "--salt: expected a cache_salt in UTF-8, found other bytes: give its --sha256"
        ) from None


@contextmanager
def _alone(path: Path) -> Iterator[IO[bytes]]:
    """The file at a path, which nobody else replaces meanwhile: that would bring a key back."""
    with open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            raise SettingsError(
                f"{path}: expected to be alone, found that somebody replaced it: try again"
            )
        yield file


def _replace(old: IO[bytes], path: Path, text: str) -> None:
    """Puts a text into the place of a file, and then zeros over the old one.

    The new file is whole on the disk before the old one goes.
    """
    was = os.fstat(old.fileno())
    draft, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(draft, "wb"):
            os.fchmod(draft, stat.S_IMODE(was.st_mode))
            if (was.st_uid, was.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(draft, was.st_uid, was.st_gid)
            _fill(draft, text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    _sync_folder(path.parent)
    old.seek(0)
    _fill(old.fileno(), "\0" * was.st_size)


def _fill(file: int, text: str) -> None:
    left = text.encode()
    while left:
        left = left[os.write(file, left) :]
    os.fsync(file)


def _sync_folder(folder: Path) -> None:
    here = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(here)
    finally:
        os.close(here)
