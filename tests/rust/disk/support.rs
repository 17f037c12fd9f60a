//! An engine over a disk in a temporary directory.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

#[path = "../shared/arena_engine.rs"]
mod arena_engine;
#[path = "restarts.rs"]
mod restarts;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arena_engine::cache_config;
pub use arena_engine::{IDENTITY, LIMIT, cache_support, geometry};
use hybrid_pages::cache::{Cache, CacheConfig};
use hybrid_pages::error::Result;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::policy::{self, Policy};
use hybrid_pages_arena::Arena;
use hybrid_pages_disk::{Disk, DiskOptions, DiskStats};
use hybrid_pages_tiers::Identity;
pub use restarts::{Restarts, Watched};

/// An engine over a disk.
pub type Engine = arena_engine::Engine<Watched>;

impl Engine {
    pub fn stats(&self) -> DiskStats {
        self.below.stats()
    }

    /// Waits until the disk is out, or is so no longer.
    #[track_caller]
    pub fn wait_until(&self, out: bool) {
        let what = if out {
            "an outage"
        } else {
            "the end of the outage"
        };
        wait(what, || {
            self.cache.poll();
            self.stats().out == out
        });
    }
}

#[track_caller]
pub fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < LIMIT, "waited for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What an engine is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    pub geometry: Geometry,
    pub slot_bytes: usize,
    pub slots: usize,
    pub identity: Identity,
    pub policy: &'static str,
    pub options: DiskOptions,
    /// What the test ends with.
    pub restarts: Arc<Restarts>,
}

impl Setup {
    /// Pages and checkpoints of a few odd KiB on two ranks, 40 slots, room for everything on disk.
    pub fn small(path: &Path) -> Self {
        let mut options = DiskOptions::new(path.join("disk"), 1 << 30);
        options.threads = 2;
        Self {
            geometry: geometry(5_000, 9_001, 2),
            slot_bytes: 4096,
            slots: 40,
            identity: IDENTITY,
            policy: "lru",
            options,
            restarts: Arc::default(),
        }
    }

    pub fn store(&self) -> PathBuf {
        let lane = self
            .options
            .path
            .join(format!("lane-{}", self.options.lane));
        lane.join(hex(&self.identity))
    }

    pub fn engine(&self) -> Engine {
        self.try_engine().unwrap()
    }

    pub fn try_engine(&self) -> Result<Engine> {
        let engine = self.unconnected()?;
        engine.below.connect(&engine.arena, &self.identity)?;
        Ok(engine)
    }

    /// Of a cache with so many slots.
    pub fn config(&self, slots: usize) -> CacheConfig {
        cache_config(&self.geometry, self.slot_bytes, slots, self.policy)
    }

    /// As before the workers have reported.
    pub fn unconnected(&self) -> Result<Engine> {
        let shape = self.config(self.slots).shape();
        self.unconnected_with(policy::by_name(self.policy, shape).unwrap())
    }

    /// The same, with a policy of the disk's own.
    pub fn unconnected_with(&self, policy: Box<dyn Policy>) -> Result<Engine> {
        let geometry = &self.geometry;
        let config = self.config(self.slots);
        let disk = Disk::open(self.options.clone(), geometry, self.slot_bytes, policy)?;
        let handle = Watched::new(disk.handle(), self);
        let cache = Cache::with_tiers(&config, vec![Box::new(disk)])?;
        let arena = Arena::create(geometry, self.slot_bytes, self.slots)?;
        Ok(Engine::over(cache, arena, handle, geometry))
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a file, changed in place.
pub fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}
