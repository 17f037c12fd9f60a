//! What a disk's calls, and what is done under the lock of its book, cost as prompts and stores grow: counted.

#[path = "../shared/tier_sizes.rs"]
mod tier_sizes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::policy::{Lru, Placement};
use hybrid_pages::transfer::checksum;
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::{Name, PARTS};
use tier_sizes::counting::{Work, work};
use tier_sizes::{SLOTS, Scene};

use crate::book::{Book, BookContents};
use crate::door::SystemDoor;
use crate::format::IndexRecord;
use crate::shape::shapes;
use crate::{Disk, DiskOptions};

const BYTES: usize = 64;

fn geometry() -> Geometry {
    let segment = Segment::new("kv", Dtype::Uint8, vec![BYTES]).unwrap();
    let layer = Layer::new("attention", vec![segment]).unwrap();
    let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
    Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap()
}

#[test]
fn calls_of_a_disk_cost_the_same_in_longer_prompts_and_larger_stores() {
    let folder = tempfile::tempdir().unwrap();
    let arena = Arena::create(&geometry(), BYTES, SLOTS).unwrap();
    for slot in 0..SLOTS {
        arena.write(SlotId(slot as u32), &[7; BYTES]).unwrap();
    }
    let made = std::cell::Cell::new(0);
    tier_sizes::check(|| {
        made.set(made.get() + 1);
        let path = folder.path().join(format!("{}", made.get()));
        let policy = Box::new(Lru::new(Placement::Every, false));
        let options = DiskOptions::new(path, 1 << 40);
        let disk = Disk::open(options, &geometry(), BYTES, policy).unwrap();
        let (handle, counts) = (disk.handle(), disk.handle());
        handle.connect(&arena, &[1; 32]).unwrap();
        let works = move || handle.settle(Duration::from_secs(60));
        let stats = move || drop(counts.stats());
        let sums = vec![checksum(&[7; BYTES])];
        Scene::new(Box::new(disk), sums, Box::new(stats), Box::new(works))
    });
}

fn name(number: usize) -> Name {
    *blake3::hash(&number.to_le_bytes()).as_bytes()
}

fn place(number: usize) -> IndexRecord {
    IndexRecord {
        class: 0,
        block: number as u32,
        cell: number as u64,
        used: 0,
        sums: Box::from([7]),
    }
}

/// The most that one call does which is made under the book's lock, beside so many entries.
fn most_under_the_lock(entries: usize) -> Work {
    let shapes = shapes(&geometry(), BYTES, 0).unwrap();
    let left: Vec<_> = (0..entries).map(|it| (name(it), place(it))).collect();
    let contents = BookContents::of(&shapes, left);
    let mut book = Book::new(1 << 40, &shapes, Arc::new(SystemDoor));
    let mut all = Vec::new();
    let (before, cost) = work(|| book.replace(contents));
    drop(before);
    all.push(cost);
    for number in 0..2 * entries {
        let name = name(number);
        drop(std::mem::take(&mut book.changes));
        let ((), cost) = work(|| {
            book.know(&name);
            if number >= entries {
                book.publish(name, place(number));
            }
            book.forget(&name);
        });
        all.push(cost);
    }
    for part in 0..PARTS {
        let (part, cost) = work(|| book.snapshot(part).collect::<Vec<_>>());
        assert!(part.len() <= entries / 64, "{}", part.len());
        all.push(cost);
    }
    for number in 0..entries {
        drop(std::mem::take(&mut book.changes));
        all.push(work(|| book.remove(&name(number))).1);
    }
    let (known, cost) = work(|| book.clear(&shapes, None));
    drop(known);
    all.push(cost);
    let most = |of: fn(&Work) -> u64| all.iter().map(of).max().unwrap();
    Work {
        bytes: most(|it| it.bytes),
        calls: most(|it| it.calls),
        largest: 0,
    }
}

#[test]
fn no_hold_of_the_books_lock_moves_the_changes_that_wait_for_the_index() {
    let shapes = shapes(&geometry(), BYTES, 0).unwrap();
    let mut book = Book::new(1 << 40, &shapes, Arc::new(SystemDoor));
    let publish = |number| work(|| book.publish(name(number), place(number))).1;
    let most = (0..1 << 15).map(publish).map(|it| it.bytes).max().unwrap();
    assert!(most < 1 << 19, "{most} bytes");
}

#[test]
fn no_hold_of_the_books_lock_moves_or_frees_what_the_store_has() {
    let most = most_under_the_lock(1 << 12);
    assert!(most.bytes < 1 << 16 && most.calls < 256, "{most:?}");
}
