"""Results of the commands ``hybrid-pages store``, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from hybrid_pages.store.about import differences, read_about, summary
from hybrid_pages.text import count, size

_SHORT = 12
_MOST_BAD = 20


def tree(path: str, lanes: Sequence[Mapping[str, Any]]) -> str:
    """Lanes with their identities, the one used last first."""
    total = sum(it["bytes"] for lane in lanes for it in lane["identities"])
    total += sum(nbytes for lane in lanes for _, nbytes in lane["cleared"])
    return "\n".join([f"{path}: {size(total)} in {count(len(lanes), 'lane')}", *_lanes(lanes)])


def _lanes(lanes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for lane in lanes:
        yield f"{lane['lane']}: {_user(lane['process'])}"
        newest: tuple[str, dict[str, Any]] | None = None
        for identity in reversed(lane["identities"]):
            used = datetime.fromtimestamp(identity["used"], timezone.utc)
            yield (
                f"  {identity['identity'][:_SHORT]}  {size(identity['bytes'])}, "
                f"{count(identity['entries'], 'entry', 'entries')}, last used "
                f"{used:%Y-%m-%d %H:%M} UTC"
            )
            about = read_about(identity["about"])
            if about is not None:
                yield f"    {one_line(summary(about))}"
                if newest is not None:
                    said = differences(about, newest[1]) or "what is not told"
                    yield f"    differs from {newest[0]} in: {one_line(said)}"
                newest = newest or (identity["identity"][:_SHORT], about)
            if identity["aside_bytes"]:
                yield f"    {size(identity['aside_bytes'])} of a damaged index were set aside"
            if identity["damaged_records"]:
                yield f"    {count(identity['damaged_records'], 'damaged record')} in the index"
            if identity["trouble"] is not None:
                yield f"    its index can't be read: {identity['trouble']}"
        if lane["cleared"]:
            nbytes = sum(nbytes for _, nbytes in lane["cleared"])
            of = "of its process since a reset, or " if lane["process"] is not None else ""
            yield f"  {size(nbytes)} that no later engine finds: {of}waiting to be removed"
        yield from (f"  can't be read: {trouble}" for trouble in lane["troubles"])


def _user(process: int | None) -> str:
    if process is None:
        return "not in use"
    return f"in use by process {process}" if process else "in use"


def verdicts(
    path: str,
    found: Sequence[Mapping[str, Any]],
    troubles: Sequence[str],
    *,
    has_keys: bool = False,
) -> str:
    """A line per identity, and the bad entries. has_keys: whether there was a key file."""
    lines = [path]
    for it in found:
        name = f"  {it['lane']}/{it['identity'][:_SHORT]}: "
        if "trouble" in it:
            lines.append(f"{name}its index can't be read: {it['trouble']}")
            continue
        text = f"{count(it['good'], 'good entry', 'good entries')} ({size(it['bytes'])})"
        if it["unopened"]:
            why = "the key file no longer has their keys" if has_keys else "give --encrypt-key"
            text += f", {it['unopened']} of them encrypted and known by their headers alone: {why}"
        if it["changed"]:
            text += f", {it['changed']} changed meanwhile"
        if it["damaged_records"]:
            text += f", {count(it['damaged_records'], 'damaged record')}"
        bad = it["bad"]
        if bad:
            reasons = Counter(one["reason"] for one in bad)
            said = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
            text += f", {len(bad)} BAD ({said})"
        lines.append(name + text)
        lines += [
            f"    class {one['class']}, block {one['block']}, cell {one['cell']}: {one['reason']}"
            for one in bad[:_MOST_BAD]
        ]
        if len(bad) > _MOST_BAD:
            lines.append(f"    and {len(bad) - _MOST_BAD} more (--json has them all)")
    lines += [f"  can't be read: {trouble}" for trouble in troubles]
    if any(it.get("bad") for it in found):
        lines.append(
            "Engines take bad entries for misses and write them again: nothing is to be done."
        )
    return "\n".join(lines)


def collected(path: str, done: Mapping[str, Any], *, dry_run: bool) -> str:
    """The result of ``store gc``: what was removed, is in use, or could not be removed."""
    nbytes = sum(nbytes for _, nbytes in done["removed"])
    verb = "would remove" if dry_run else "removed"
    lines = [f"{path}: {verb} {size(nbytes)}"]
    lines += [f"  {name}  {size(taken)}" for name, taken in done["removed"]]
    lines += [f"  {lane}: {_user(process)}, left alone" for lane, process in done["busy"]]
    lines += [f"  can't be removed: {failure}" for failure in done["failed"]]
    return "\n".join(lines)


def one_line(text: str) -> str:
    """A text with a space for each line break and whatever else can't be printed."""
    return "".join(character if character.isprintable() else " " for character in text)


def printable(text: str) -> str:
    """A text with an escape for whatever a terminal would not show as it is."""
    return "".join(
        character
        if character == "\n" or character.isprintable()
        else character.encode("unicode_escape").decode()
        for character in text
    )
