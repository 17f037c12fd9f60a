"""``hybrid-pages store inspect|verify|gc PATH``."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

from hybrid_pages import DiskError, DiskTree, HybridPagesError
from hybrid_pages.adapter.encryption import key_setting, read_keys
from hybrid_pages.arguments import require_named
from hybrid_pages.progress import progress
from hybrid_pages.store.about import read_about
from hybrid_pages.store.report import collected, printable, tree, verdicts

_DAY = 86_400


def run(args: SimpleNamespace) -> int:
    """Runs one action. Exit status 2 if the path can't be read or nothing can be printed, 130 when
    interrupted."""
    action = {"inspect": _inspect, "verify": _verify, "gc": _collect}[args.action]
    try:
        require_named("PATH", args.path)
        if not os.path.lexists(args.path):
            raise DiskError(
                f"{args.path}: expected a directory of this user, found none: name the engines' "
                "disk_path"
            )
        return action(DiskTree(args.path), args)
    except HybridPagesError as error:
        print(f"hybrid-pages store {args.action}: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"hybrid-pages store {args.action}: interrupted", file=sys.stderr)
        return 130


def _inspect(disk: DiskTree, args: SimpleNamespace) -> int:
    lanes = disk.lanes()
    if args.json:
        print(json.dumps({"path": args.path, "lanes": [_readable(lane) for lane in lanes]}))
    else:
        print(printable(tree(args.path, lanes)))
    return 0


def _readable(lane: Any) -> dict[str, Any]:
    """A lane, with the facts of each identity as an object."""
    identities = [it | {"about": read_about(it["about"])} for it in lane["identities"]]
    return {**lane, "identities": identities}


def _verify(disk: DiskTree, args: SimpleNamespace) -> int:
    keys = read_keys(key_setting(args.encrypt_key))
    lanes = disk.lanes()
    found: list[dict[str, Any]] = []
    total = sum(
        entries * cell
        for lane in lanes
        for it in lane["identities"]
        for entries, cell in it["classes"]
    )
    with progress(total, "B", scale=True) as bar:
        for lane in lanes:
            for identity in lane["identities"]:
                it = {"lane": lane["lane"], "identity": identity["identity"]}
                if identity["trouble"] is not None:
                    found.append(it | {"trouble": identity["trouble"]})
                    continue
                done = 0

                def told(now: int, _: int) -> None:
                    nonlocal done
                    if bar is not None:
                        bar.update(now - done)
                    done = now

                try:
                    verdict = disk.verify(
                        lane["lane"], identity["identity"], told, encrypt_key=keys
                    )
                except DiskError as error:
                    found.append(it | {"trouble": str(error)})
                    continue
                if verdict is not None:  # else an engine has cleared or removed it
                    found.append(it | verdict)
    troubles = [trouble for lane in lanes for trouble in lane["troubles"]]
    damaged = bool(troubles) or any(
        "trouble" in it or it["bad"] or it["damaged_records"] for it in found
    )
    if args.json:
        print(json.dumps({"path": args.path, "identities": found, "troubles": troubles}))
    else:
        print(printable(verdicts(args.path, found, troubles, has_keys=bool(keys))))
    return int(damaged)


def _collect(disk: DiskTree, args: SimpleNamespace) -> int:
    done = disk.collect(
        unused_seconds=None if args.unused_for is None else args.unused_for * _DAY,
        lanes=args.lanes,
        dry_run=args.dry_run,
    )
    if args.json:
        print(json.dumps({"path": args.path, "dry_run": args.dry_run, **done}))
    else:
        print(printable(collected(args.path, done, dry_run=args.dry_run)))
    return int(bool(done["failed"]))
