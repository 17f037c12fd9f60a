//! What every disk test ends with: two more restarts, which find what was durable.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use hybrid_pages::error::Result;
use hybrid_pages_arena::Arena;
use hybrid_pages_disk::{DiskFailure, DiskHandle, DiskTree, SystemDoor};
use hybrid_pages_tiers::Identity;

use super::arena_engine::{Handle, LIMIT};
use super::{Setup, hex};

/// An engine that ends is given so long to write what it has published.
const SOON: Duration = Duration::from_millis(500);

/// The disks of a test as their last engines left them. When the last of its engines and setups has ended, each disk
/// is started twice more: a second start sees what the first one did to the index.
#[derive(Debug, Default)]
pub struct Restarts {
    disks: Mutex<BTreeMap<(PathBuf, u32), Left>>,
    excuse: OnceLock<&'static str>,
}

/// A disk that an engine has left.
#[derive(Debug)]
struct Left {
    setup: Setup,
    /// How many entries it found and wrote, all durable; `None` if that can't be told.
    entries: Option<u64>,
}

impl Restarts {
    /// The disks of this test can't be started as its engines have left them.
    pub fn excuse(&self, why: &'static str) {
        self.excuse.get_or_init(|| why);
    }

    fn ended(&self, setup: &Setup, entries: Option<u64>) {
        // Of its own: this one would wait for itself.
        let mut setup = Setup {
            restarts: Arc::default(),
            ..setup.clone()
        };
        setup.options.door = Arc::new(SystemDoor);
        let key = (setup.options.path.clone(), setup.options.lane);
        let left = Left { setup, entries };
        self.disks.lock().unwrap().insert(key, left);
    }
}

impl Drop for Restarts {
    fn drop(&mut self) {
        if std::thread::panicking() || self.excuse.get().is_some() {
            return;
        }
        let disks = std::mem::take(&mut *self.disks.lock().unwrap());
        for left in disks.into_values() {
            if left.setup.options.path.exists() {
                left.restart_twice();
            }
        }
    }
}

impl Left {
    fn restart_twice(self) {
        let setup = self.setup;
        setup.restarts.excuse("these are the restarts");
        let mut entries = self.entries;
        let before = good(&setup);
        for restart in ["the first restart", "the second restart"] {
            let engine = started(&setup);
            let stats = engine.stats();
            if let Some(entries) = entries {
                assert_eq!(stats.entries, entries, "{restart}: {stats:?}");
                for lost in [
                    DiskFailure::Record,
                    DiskFailure::Short,
                    DiskFailure::IndexDamaged,
                ] {
                    assert_eq!(stats.failed(lost), 0, "{restart}: {stats:?}");
                }
            }
            assert!(!stats.out, "{restart}: {:?}", engine.below.take_notes());
            entries = Some(stats.entries);
        }
        assert!(good(&setup) >= before, "entries with the right bytes");
    }
}

/// How many entries there are with the right bytes. A kill may leave others; an index that is damaged has none.
fn good(setup: &Setup) -> u64 {
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let lane = format!("lane-{}", setup.options.lane);
    let verdict = tree.verify(&lane, &hex(&setup.identity), None, &mut |_, _| true);
    verdict.ok().flatten().map_or(0, |verdict| verdict.good)
}

/// An engine that had hung may still have the lane for a moment.
fn started(setup: &Setup) -> super::Engine {
    let begun = Instant::now();
    loop {
        match setup.try_engine() {
            Ok(engine) => return engine,
            Err(error) => assert!(begun.elapsed() < LIMIT, "a restart: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The handle of an engine's disk. What it leaves is looked at when the test ends.
#[derive(Debug)]
pub struct Watched {
    handle: DiskHandle,
    setup: Setup,
    identity: OnceLock<Identity>,
}

impl Watched {
    pub fn new(handle: DiskHandle, setup: &Setup) -> Self {
        let (setup, identity) = (setup.clone(), OnceLock::new());
        Self {
            handle,
            setup,
            identity,
        }
    }

    pub fn connect(&self, arena: &Arena, identity: &Identity) -> Result<()> {
        self.identity.get_or_init(|| *identity);
        self.handle.connect(arena, identity)
    }
}

impl Deref for Watched {
    type Target = DiskHandle;

    fn deref(&self) -> &DiskHandle {
        &self.handle
    }
}

impl Handle for Watched {
    fn settled(&self, limit: Duration) -> bool {
        self.settle(limit)
    }

    fn audited(&self) -> Option<String> {
        self.audit()
    }

    fn counts(&self) -> String {
        format!("{:?}", self.stats())
    }

    fn ended(&self) {
        let Some(&identity) = self.identity.get() else {
            return;
        };
        let known = !self.stats().out && self.settle(SOON) && !self.stats().out;
        let stats = self.stats();
        let entries = if stats.persistent { stats.entries } else { 0 };
        let setup = Setup {
            identity,
            ..self.setup.clone()
        };
        self.setup.restarts.ended(&setup, known.then_some(entries));
    }
}
