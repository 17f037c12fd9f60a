"""Faults that make a call of a tier cost more as prompts and stores grow."""

from __future__ import annotations

from fault import Fault

GROWING = [
    Fault(
        "the entries of a disk are in one table, which is moved as it grows",
        "pub const PARTS: usize = 1024;",
        "pub const PARTS: usize = 1;",
        "hybrid-pages-disk",
        ("lib::sizes",),
    ),
    Fault(
        "tables grow in one piece, which is moved",
        "const PIECE: usize = 1 << 12;",
        "const PIECE: usize = 1 << 30;",
        "hybrid-pages",
        ("sizes::what_calls_allocate",),
    ),
    Fault(
        "a reset frees what a disk knows while the cache waits",
        "lock(&shared.discarded).push(known);",
        "drop(known);",
        "hybrid-pages-disk",
        ("lib::sizes",),
    ),
    Fault(
        "a pack leaves the catalog under one hold of the lock",
        "pack.entries.len().saturating_sub(PORTION);",
        "0;",
        "hybrid-pages-remote",
        ("lib::catalog",),
    ),
    Fault(
        "a reset frees what a remote store knows while the cache waits",
        "            drop(known); // Dropped here, since it may be large.\n",
        "",
        "hybrid-pages-remote",
        ("lib::sizes",),
    ),
    Fault(
        "a reset takes back all that waits for a Mooncake Store at once",
        "let waiting = state.take_puts(PORTION, |_| true);",
        "let waiting = state.take_puts(usize::MAX, |_| true);",
        "hybrid-pages-mooncake",
        ("lib::sizes",),
    ),
]
