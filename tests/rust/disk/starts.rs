//! What is durable outlives starts at which the system refuses a call, whichever it is, and however often.

use crate::door;
use crate::support;

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use door::{BadDoor, Fault};
use hybrid_pages_disk::{DiskFailure, Door, DoorFile, SystemDoor};
use support::{Engine, LIMIT, Setup};

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;

const PROMPTS: [&str; 3] = ["abc", "defg", "xy"];
const ENTRIES: u64 = 4 + 5 + 3;

/// Which calls are refused, and how.
#[derive(Debug, Default)]
struct Refusing {
    /// Calls so far.
    calls: usize,
    /// From this one on so many, with that error.
    refused: Option<(usize, usize, i32)>,
}

/// A door that counts its calls and refuses some.
#[derive(Debug, Clone, Default)]
struct CountingDoor(Arc<Mutex<Refusing>>);

impl CountingDoor {
    fn refuse(&self, from: usize, count: usize, errno: i32) {
        let refused = Some((from, count, errno));
        *self.0.lock().unwrap() = Refusing { calls: 0, refused };
    }

    /// Refuses none from now on. Returns whether the first one that was to be refused has come.
    fn mend(&self) -> bool {
        let mut state = self.0.lock().unwrap();
        let refused = state.refused.take();
        refused.is_some_and(|(from, ..)| state.calls > from)
    }

    fn call(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let number = state.calls;
        state.calls += 1;
        match state.refused {
            Some((from, count, errno)) if (from..from.saturating_add(count)).contains(&number) => {
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => Ok(()),
        }
    }
}

impl Door for CountingDoor {
    fn open(&self, at: BorrowedFd<'_>, name: &str, direct: bool) -> io::Result<Box<dyn DoorFile>> {
        self.call()?;
        Ok(Box::new(CountingFile {
            file: SystemDoor.open(at, name, direct)?,
            door: self.clone(),
        }))
    }

    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
        self.call()?;
        SystemDoor.rename(directory, from, to)
    }
}

#[derive(Debug)]
struct CountingFile {
    file: Box<dyn DoorFile>,
    door: CountingDoor,
}

impl DoorFile for CountingFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.door.call()?;
        self.file.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.door.call()?;
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.door.call()?;
        self.file.sync()
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.door.call()?;
        self.file.punch(offset, length)
    }

    fn length(&self) -> io::Result<u64> {
        self.door.call()?;
        self.file.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.door.call()?;
        self.file.set_length(length)
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
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

fn serves(engine: &Engine, what: &str) {
    for prompt in PROMPTS {
        assert_eq!(
            engine.restore(prompt),
            prompt.len(),
            "{what}: {prompt}: {:?} {:?}",
            engine.stats(),
            engine.below.take_notes()
        );
    }
}

/// A disk with some prompts, and a copy of it for each start.
struct Stock {
    place: tempfile::TempDir,
    door: CountingDoor,
    setup: Setup,
}

impl Stock {
    /// As an engine leaves it that ends, or is killed: then its index is to be repaired.
    fn new(killed: bool) -> Self {
        let place = tempfile::tempdir().unwrap();
        let door = CountingDoor::default();
        let mut setup = Setup::small(place.path());
        setup.options.door = Arc::new(door.clone());
        setup.options.retry = Duration::from_millis(1);
        setup.options.deadline = Duration::from_secs(60); // calls are refused here, and none hangs
        let engine = setup.engine();
        for prompt in PROMPTS {
            engine.keep(prompt);
        }
        if killed {
            copy(&setup.options.path, &place.path().join("stock"));
            drop(engine);
        } else {
            drop(engine);
            copy(&setup.options.path, &place.path().join("stock"));
        }
        Self { place, door, setup }
    }

    /// A start at which these calls are refused; everything is served when none is any more, and by two later
    /// processes. Returns whether as many calls were made at all.
    fn survives(&self, from: usize, count: usize, errno: i32) -> bool {
        let what = format!("error {errno} from call {from} on, {count} times");
        let mut setup = self.setup.clone();
        setup.options.path = self.place.path().join("copy");
        copy(&self.place.path().join("stock"), &setup.options.path);

        self.door.refuse(from, count, errno);
        let engine = setup.engine();
        let met = self.door.mend();
        wait("the disk", || {
            engine.cache.poll();
            !engine.stats().out
        });
        serves(&engine, &what);
        let stats = engine.stats();
        assert_eq!((stats.entries, stats.persistent), (ENTRIES, true), "{what}");
        drop(engine);
        for restart in 1..=2 {
            let engine = setup.engine();
            let stats = engine.stats();
            assert_eq!(stats.entries, ENTRIES, "{what}: restart {restart}");
            assert_eq!(stats.failures, [0; 17], "{what}: restart {restart}");
            serves(&engine, &what);
        }
        std::fs::remove_dir_all(&setup.options.path).unwrap();
        met
    }
}

/// Has every call of a start refused with an error, so many times, until a start makes no more calls.
fn each_call(errno: i32, killed: bool, count: usize) {
    let stock = Stock::new(killed);
    let calls = (0..).take_while(|&from| stock.survives(from, count, errno));
    assert!(calls.count() > 15, "a start makes some calls");
}

const ONCE: usize = 1;
const FROM_THEN_ON: usize = usize::MAX;

#[test]
fn a_full_table_of_files_at_a_start_costs_no_entry() {
    each_call(EMFILE, false, ONCE);
    each_call(EMFILE, true, FROM_THEN_ON);
}

#[test]
fn an_error_of_the_device_at_a_start_costs_no_entry() {
    each_call(EIO, true, ONCE);
    each_call(EIO, false, FROM_THEN_ON);
}

#[test]
fn a_lack_of_memory_at_a_start_costs_no_entry() {
    each_call(ENOMEM, false, ONCE);
}

#[test]
fn a_lack_of_permission_at_a_start_costs_no_entry() {
    each_call(EACCES, false, FROM_THEN_ON);
}

#[test]
fn a_full_file_system_at_a_start_costs_no_entry() {
    each_call(ENOSPC, true, ONCE);
    each_call(ENOSPC, true, FROM_THEN_ON);
}

#[test]
fn a_disk_that_cannot_be_opened_is_out_and_says_so() {
    let stock = Stock::new(false);
    let setup = &stock.setup;
    let slab = setup.store().join("class-0.slab");
    let bytes = std::fs::read(&slab).unwrap();
    stock.door.refuse(0, usize::MAX, EMFILE);
    let engine = setup.engine();
    assert_eq!(engine.restore("abc"), 0);
    engine.store("abc");
    let stats = engine.stats();
    assert_eq!((stats.out, stats.outages, stats.writes), (true, 1, 0));
    assert!(stats.failures.iter().sum::<u64>() > 0);
    let notes = engine.below.take_notes().join("\n");
    assert!(
        notes.contains("it is tried again") && notes.contains("os error 24"),
        "{notes}"
    );
    assert_eq!(std::fs::read(&slab).unwrap(), bytes, "nothing is cut");
    assert!(!setup.store().join("index.damaged").exists());
    engine.below.describe("{}");
    stock.door.mend();
    wait("the disk", || {
        engine.cache.poll();
        !engine.stats().out
    });
    assert_eq!(engine.restore("xy"), 2);
    engine.keep("new");
    let about = std::fs::read(setup.store().join("about.json"));
    assert_eq!(about.unwrap(), b"{}", "written when there is a place");
}

#[test]
fn a_disk_that_was_never_opened_can_be_left() {
    let stock = Stock::new(false);
    stock.door.refuse(0, usize::MAX, EIO);
    for _ in 0..2 {
        let engine = stock.setup.engine();
        engine.store("abc");
        engine.below.close();
    }
    stock.door.mend();
    serves(&stock.setup.engine(), "after two starts without the disk");
}

#[test]
fn what_is_cleared_before_the_disk_could_be_opened_is_gone_when_it_is() {
    let stock = Stock::new(false);
    stock.door.refuse(0, usize::MAX, EIO);
    let mut engine = stock.setup.engine();
    let before = engine.stats().failed(DiskFailure::Directory);
    engine.cache.clear();
    engine.weights += 1;
    assert_eq!(engine.stats().failed(DiskFailure::Directory), before + 1);
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("what was cleared"), "{notes}");
    stock.door.mend();
    wait("the disk", || {
        engine.cache.poll();
        !engine.stats().out
    });
    engine.settle();
    assert_eq!(PROMPTS.map(|prompt| engine.restore(prompt)), [0; 3]);
    drop(engine);
    let engine = stock.setup.engine();
    assert_eq!(PROMPTS.map(|prompt| engine.restore(prompt)), [0; 3]);
}

#[test]
fn an_engine_that_serves_does_not_wait_for_a_large_store_to_open() {
    let place = tempfile::tempdir().unwrap();
    let door = BadDoor::default();
    let mut setup = Setup::small(place.path());
    setup.options.door = Arc::new(door.clone());
    let engine = setup.engine();
    engine.store("abc");
    engine.settle();
    drop(engine);
    // Nothing but length: what is behind the last record is ignored.
    let journal = File::options()
        .write(true)
        .open(setup.store().join("journal"));
    journal.unwrap().set_len(64 << 20).unwrap();
    door.set("index", Fault::Hang);
    let engine = setup.unconnected().unwrap();
    engine
        .below
        .connect_meanwhile(&engine.arena, &setup.identity)
        .unwrap();
    engine.cache.poll();
    assert_eq!((engine.hit("abc").blocks, engine.stats().out), (0, true));
    door.mend();
    let begun = Instant::now();
    while engine.stats().out {
        assert!(begun.elapsed() < LIMIT, "never open: {:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
        engine.cache.poll();
    }
    assert_eq!((engine.restore("abc"), engine.stats().outages), (3, 0));
}
