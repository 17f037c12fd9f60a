//! A panic in a thread of a disk, or under one of its locks, costs the disk: what was under way ends, and no other byte
//! is shown.

mod support;

use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use hybrid_pages_disk::{DiskFailure, DiskHandle, Door, DoorFile, SystemDoor};
use support::cache_support::keys;
use support::{Engine, LIMIT, Setup};

/// Counts calls, and panics at one of them.
#[derive(Debug, Clone)]
struct Fuse(Arc<AtomicIsize>);

impl Fuse {
    fn burn(&self) {
        assert!(self.0.fetch_sub(1, Ordering::SeqCst) != 1, "planted");
    }

    fn has_blown(&self) -> bool {
        self.0.load(Ordering::SeqCst) <= 0
    }
}

#[derive(Debug)]
struct FragileDoor(Fuse);

#[derive(Debug)]
struct FragileFile(Box<dyn DoorFile>, Fuse);

impl Door for FragileDoor {
    fn open(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        direct: bool,
    ) -> io::Result<Box<dyn DoorFile>> {
        self.0.burn();
        let file = SystemDoor.open(directory, name, direct)?;
        Ok(Box::new(FragileFile(file, self.0.clone())))
    }

    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
        self.0.burn();
        SystemDoor.rename(directory, from, to)
    }

    /// Asked for under the lock of what is on the disk, too.
    fn seconds(&self) -> u64 {
        self.0.burn();
        SystemDoor.seconds()
    }
}

impl DoorFile for FragileFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.burn();
        self.0.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.1.burn();
        self.0.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.burn();
        self.0.sync()
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.1.burn();
        self.0.punch(offset, length)
    }

    fn length(&self) -> io::Result<u64> {
        self.1.burn();
        self.0.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.1.burn();
        self.0.set_length(length)
    }
}

#[track_caller]
fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < LIMIT, "waited for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What an engine does, as far as it comes. Every byte that it loads is compared.
fn work(engine: &Engine) {
    let (cache, namespace) = (&engine.cache, engine.namespace);
    for prompt in ["abc", "new", "xyz"] {
        let keys = keys(prompt);
        wait("a promotion", || {
            !cache.promote(namespace, &keys, 0).unwrap_or(false)
        });
        // A clock that panics under the cache's lock closes that, too.
        let goes_on = AssertUnwindSafe(|| {
            engine.load(prompt);
            engine.store(prompt);
        });
        if catch_unwind(goes_on).is_err() {
            assert!(cache.failure().is_some());
            return;
        }
        cache.poll();
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(60) {
        cache.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether it happened in the index alone, which is made anew then.
fn of_the_index(disk: &DiskHandle) -> bool {
    let stats = disk.stats();
    let failed = stats.failed(DiskFailure::Index) + stats.failed(DiskFailure::IndexDamaged);
    !stats.out && failed > 0
}

/// Says nothing of the panics that are planted.
fn quietly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if !text.contains("planted") {
            usual(panic);
        }
    }));
}

#[test]
fn wherever_it_happens_the_disk_is_left_and_what_was_under_way_ends() {
    quietly();
    let mut seen = 0;
    for call in (1..400).step_by(7) {
        let place = tempfile::tempdir().unwrap();
        let mut setup = Setup::small(place.path());
        let engine = setup.engine();
        engine.keep("abc");
        engine.keep("xyz");
        drop(engine);
        let fuse = Fuse(Arc::new(AtomicIsize::new(call)));
        let usual = std::mem::replace(&mut setup.options.door, Arc::new(FragileDoor(fuse.clone())));
        let engine = setup.unconnected().unwrap();
        if engine
            .below
            .connect(&engine.arena, &setup.identity)
            .is_err()
        {
            assert!(fuse.has_blown() && engine.below.stats().out, "call {call}");
            engine.below.close();
            std::mem::forget(engine); // It would audit the disk.
            continue;
        }
        work(&engine);
        if !fuse.has_blown() {
            break;
        }
        seen += 1;
        let (cache, disk) = (&engine.cache, &engine.below);
        wait(&format!("panic {call} to be noticed"), || {
            cache.poll();
            disk.stats().out || cache.failure().is_some() || of_the_index(disk)
        });
        if cache.failure().is_none() {
            assert!(!disk.take_notes().is_empty(), "call {call}");
            assert_eq!(disk.audit().is_none(), of_the_index(disk), "call {call}");
            wait("what was under way", || {
                cache.poll();
                let stats = disk.stats();
                stats.reading + stats.writing + cache.stats().leased_slots == 0
            });
            // The host goes on, and every byte is right.
            for prompt in ["abc", "xyz", "pqr"] {
                let keys = keys(prompt);
                wait("a promotion", || {
                    !cache.promote(engine.namespace, &keys, 0).unwrap()
                });
                engine.store(prompt);
                assert_eq!(engine.load(prompt), 3, "call {call}");
            }
            assert_eq!(cache.audit(), None);
        } else {
            assert!(cache.lookup(engine.namespace, &keys("abc")).is_err());
        }
        disk.close();
        std::mem::forget(engine);
        // The next process finds what it finds, and nothing else.
        setup.options.door = usual;
        if let Ok(engine) = setup.try_engine() {
            for prompt in ["abc", "xyz", "new"] {
                engine.restore(prompt);
            }
        }
    }
    drop(std::panic::take_hook());
    assert!(seen > 10, "expected many places to panic at, found {seen}");
}
