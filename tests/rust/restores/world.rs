//! One world: a disk, perhaps a remote store, and processes that use them one after another.

use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hybrid_pages::cache::Cache;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::policy;
use hybrid_pages::tier::Below;
use hybrid_pages_arena::Arena;
use hybrid_pages_disk::{Disk, DiskFailure, DiskHandle, DiskOptions, DiskStats};
use hybrid_pages_remote::{Remote, RemoteFailure, RemoteHandle, RemoteOptions, RemotePlace};
use hybrid_pages_tiers::EncryptKeys;
use object_store::path::Path as ObjectPath;

use super::bad_door::BadDoor;
use super::claims::{Causes, Claim, Record};
use super::door::{Kind, WildDoor};
use crate::support::{EngineOver, Handle, IDENTITY, LIMIT, Setup, cache_config, geometry};
use crate::wild::{Random, Shared, Wild, spoil};

type Engine = EngineOver<Both>;

/// The handles of the tiers of an engine.
#[derive(Debug)]
pub struct Both {
    disk: DiskHandle,
    remote: Option<RemoteHandle>,
}

impl Handle for Both {
    fn settled(&self, limit: Duration) -> bool {
        let remote = self.remote.as_ref();
        self.disk.settle(limit) && remote.is_none_or(|remote| remote.settle(limit))
    }

    fn audited(&self) -> Option<String> {
        self.disk.audit()
    }

    fn counts(&self) -> String {
        let remote = self.remote.as_ref().map(RemoteHandle::stats);
        format!("{:?} {remote:?}", self.disk.stats())
    }
}

/// What a world counts.
#[derive(Debug, Default)]
pub struct Tally {
    pub figures: BTreeMap<String, u64>,
}

impl Tally {
    pub fn add(&mut self, name: impl Into<String>, times: u64) {
        if times > 0 {
            *self.figures.entry(name.into()).or_default() += times;
        }
    }
}

/// Where the remote store of a world is.
#[derive(Debug)]
enum Store {
    None,
    Memory(Arc<Wild>),
    Directory(std::path::PathBuf),
}

/// What a world is like.
pub struct World {
    place: tempfile::TempDir,
    random: Random,
    geometry: Geometry,
    /// What entries are encrypted with below the host, if they are.
    keys: Option<EncryptKeys>,
    /// Faults that the disk's files meet.
    kinds: Vec<Kind>,
    loses_power: bool,
    changes_quota: bool,
    quota: u64,
    store: Store,
    /// Whether requests to the store meet faults, or its directory is spoilt.
    hostile: bool,
    slots: usize,
    claims: HashMap<String, Claim>,
    /// What earlier processes have counted, and what was done to the tiers.
    disk: Record,
    remote: Record,
    pub tally: Tally,
}

const ROOMY: u64 = 1 << 30;
/// A figure that shall be zero.
pub const LOST_UNHARMED: &str = "durable prompts lost where nothing harms";
const SLOT_BYTES: usize = 2048;
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

impl World {
    pub fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        // Some on a real file system, most in memory, where syncs take no time.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() && !random.chance(15) {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let place = place.unwrap();
        let kinds = match random.below(4) {
            0 => Vec::new(),
            1 => vec![Kind::Short, Kind::Interrupted, Kind::Slow, Kind::Clock],
            _ => {
                let chosen = Kind::ALL.into_iter().filter(|_| random.chance(40));
                chosen.collect()
            }
        };
        let calm = !kinds.iter().any(|kind| kind.harms());
        let store = match random.below(5) {
            0 | 1 => Store::None,
            2 | 3 => Store::Memory(Arc::new(Wild::new(seed ^ 1 << 60))),
            _ => Store::Directory(place.path().join("shared")),
        };
        Self {
            geometry: geometry(1_500, 2_600, 1 + random.below(2)),
            keys: random.chance(33).then(|| EncryptKeys::parse(KEY).unwrap()),
            kinds,
            loses_power: random.chance(if calm { 15 } else { 25 }),
            changes_quota: random.chance(if calm { 15 } else { 40 }),
            quota: ROOMY,
            store,
            hostile: random.chance(if calm { 25 } else { 60 }),
            slots: 40 + random.below(80),
            claims: HashMap::new(),
            disk: Record::default(),
            remote: Record::default(),
            tally: Tally::default(),
            place,
            random,
        }
    }

    /// Whether nothing that is done here may cost an entry: calls are short, slow and interrupted, clocks jump, and
    /// processes are killed.
    fn is_harmless(&self) -> bool {
        let harms = self.kinds.iter().any(|kind| kind.harms());
        !(harms || self.hostile || self.loses_power || self.changes_quota)
    }

    /// Some processes, one after another.
    pub fn live(&mut self) {
        for _ in 0..2 + self.random.below(6) {
            let bad = BadDoor::default();
            let power = self.loses_power && self.random.chance(40);
            if power {
                bad.remember();
            }
            let seed = self.random.word();
            let door = WildDoor::new(bad.clone(), seed, &self.kinds);
            let rate = [0, 5, 30, 100][self.random.below(4)];
            door.set(rate);
            let Some(engine) = self.start(&door) else {
                continue;
            };
            let mut life = Life {
                world: self,
                door,
                engine,
                fresh: true,
                kept: Vec::new(),
            };
            life.run(rate);
            life.end(power);
            if power {
                bad.lose_power(seed);
                self.disk.done.add("a loss of power", 1);
                self.tally.add("losses of power", 1);
            }
        }
        if let Store::Memory(store) = &self.store {
            self.tally.add("faults of stores", store.met());
        }
        self.tally.add("worlds", 1);
        self.tally.add(
            "worlds of encrypted entries",
            u64::from(self.keys.is_some()),
        );
    }

    fn start(&mut self, door: &WildDoor) -> Option<Engine> {
        if self.changes_quota {
            let quota = [ROOMY, 2 << 20, 400 << 10][self.random.below(3)];
            if quota != self.quota {
                self.tally.add("changes of a quota", 1);
            }
            if quota < self.quota {
                self.disk.done.add("a lower quota", 1);
            }
            self.quota = quota;
        }
        let begun = Instant::now();
        loop {
            match self.engine(door) {
                Ok(engine) => return Some(engine),
                // A process that was killed while its disk hung may still have the lane for a moment.
                Err(error) => assert!(begun.elapsed() < LIMIT, "a start: {error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn engine(&self, door: &WildDoor) -> hybrid_pages::error::Result<Engine> {
        let config = cache_config(&self.geometry, SLOT_BYTES, self.slots, "lru");
        let policy = || policy::by_name("lru", config.shape()).unwrap();
        let mut options = DiskOptions::new(self.place.path().join("disk"), self.quota);
        options.keys = self.keys.clone();
        options.threads = 2;
        options.deadline = Duration::from_secs(2);
        options.retry = Duration::from_millis(2);
        options.door = Arc::new(door.clone());
        let disk = Disk::open(options, &self.geometry, SLOT_BYTES, policy())?;
        let disk_handle = disk.handle();
        let mut tiers: Vec<Box<dyn Below>> = vec![Box::new(disk)];
        let mut handle = None;
        if let Some(options) = self.remote_options() {
            let remote = Remote::open(options, &self.geometry, SLOT_BYTES, policy())?;
            handle = Some(remote.handle());
            tiers.push(Box::new(remote));
        }
        let cache = Cache::with_tiers(&config, tiers)?;
        let arena = Arena::create(&self.geometry, SLOT_BYTES, self.slots)?;
        let both = Both {
            disk: disk_handle,
            remote: handle,
        };
        both.disk.connect(&arena, &IDENTITY)?;
        if let Some(remote) = &both.remote {
            remote.connect(&arena, &IDENTITY)?;
        }
        Ok(Engine::over(cache, arena, both, &self.geometry))
    }

    fn remote_options(&self) -> Option<RemoteOptions> {
        let place = match &self.store {
            Store::None => return None,
            Store::Memory(store) => {
                let shared = Arc::new(Shared(Arc::clone(store)));
                RemotePlace::of(shared, ObjectPath::from("wild"), "wild".into())
            }
            Store::Directory(folder) => {
                let url = format!("file://{}", folder.display());
                RemotePlace::of_url(&url).unwrap()
            }
        };
        let mut options = Setup::at(place).options;
        options.keys = self.keys.clone();
        if self.hostile {
            options.deadline = Duration::from_millis(60);
            options.write_limit = Duration::from_millis(60);
        }
        options.retry = Duration::from_millis(2);
        options.pack_age = Duration::from_millis(5);
        options.pack_bytes = 60_000;
        options.refresh = Duration::from_millis(2);
        options.whole = Duration::from_millis(50);
        Some(options)
    }
}

/// One process of a world.
struct Life<'a> {
    world: &'a mut World,
    door: WildDoor,
    engine: Engine,
    /// Whether the weights are still those of the identity: a reset changes them.
    fresh: bool,
    /// Prompts that this process has been asked for.
    kept: Vec<String>,
}

impl Life<'_> {
    fn below(&self, most: usize) -> usize {
        self.world.random.below(most)
    }

    /// A leaf of a small tree, often one that was asked for before; some end inside a block.
    fn prompt(&mut self) -> String {
        if !self.kept.is_empty() && self.world.random.chance(50) {
            return self.kept[self.below(self.kept.len())].clone();
        }
        let letters = 1 + self.below(6);
        let letter = |at| {
            let most = if at == 0 { 6 } else { 2 };
            char::from(b'a' + self.below(most) as u8)
        };
        let mut prompt: String = (0..letters).map(letter).collect();
        if self.world.random.chance(30) {
            prompt.push(char::from(b'A' + self.below(15) as u8));
        }
        self.kept.push(prompt.clone());
        prompt
    }

    /// What may have cost entries of the disk, and of the remote store, by now.
    fn records(&self) -> (Record, Record) {
        let (world, both) = (&self.world, &self.engine.below);
        let tiers = self.engine.cache.tiers();
        let stats = both.disk.stats();
        let mut counted = Causes::default();
        for kind in DiskFailure::ALL {
            counted.add(kind.name(), stats.failed(*kind));
        }
        counted.add("evicted", tiers[0].usage.evicted);
        counted.add("an outage", stats.outages);
        let mut done = Causes::default();
        let harmful = Kind::ALL.into_iter().filter(|kind| kind.harms());
        harmful.for_each(|kind| done.add(kind.name(), self.door.met(kind)));
        let disk = Record {
            counted: world.disk.counted.with(&counted),
            done: world.disk.done.with(&done),
        };
        let Some(remote) = &both.remote else {
            return (disk, world.remote.clone());
        };
        let stats = remote.stats();
        let mut counted = Causes::default();
        for kind in RemoteFailure::ALL {
            counted.add(kind.name(), stats.failed(*kind));
        }
        counted.add("evicted", tiers[1].usage.evicted);
        counted.add("an outage", stats.outages);
        let mut done = world.remote.done.clone();
        if let Store::Memory(store) = &world.store {
            done.set("a faulty store", store.met());
        }
        let counted = world.remote.counted.with(&counted);
        let remote = Record { counted, done };
        (disk, remote)
    }

    fn run(&mut self, rate: u32) {
        let claimed: Vec<String> = self.world.claims.keys().cloned().collect();
        self.hostilities();
        claimed.iter().for_each(|prompt| self.serve(prompt));
        for _ in 0..self.below(300) {
            self.step(rate);
        }
    }

    /// The store is hostile for a while, or not.
    fn hostilities(&mut self) {
        if let Store::Memory(store) = &self.world.store {
            let percent = [0, 0, 5, 25][self.below(4)];
            store.set(if self.world.hostile { percent } else { 0 });
        }
    }

    fn step(&mut self, rate: u32) {
        let prompt = self.prompt();
        match self.below(40) {
            0..10 => drop(self.engine.store(&prompt)),
            10..28 => self.serve(&prompt),
            28..32 => self.keep(&prompt),
            32 => self.door.set(if self.below(2) == 0 { 0 } else { rate }),
            33 => self.hostilities(),
            34 => self.engine.audit(),
            35 => drop(self.engine.hit(&prompt)),
            36 => drop(self.settle()),
            37 if self.below(10) == 0 => {
                // Other weights: from now on nothing that was there is right.
                self.engine.cache.clear();
                self.engine.weights = 1 + self.world.random.word() % 1000;
                self.fresh = false;
                self.world.claims.clear();
                self.world.tally.add("resets", 1);
            }
            38 => {
                if let (Store::Directory(folder), true) = (&self.world.store, self.world.hostile) {
                    let _ = spoil(folder, &self.world.random); // What it was about may have left.
                    self.world.remote.done.add("a spoilt directory", 1);
                }
            }
            39 => std::thread::sleep(Duration::from_micros(self.below(3_000) as u64)),
            _ => {
                let keys = crate::support::cache_support::keys(&prompt);
                let lease = self.engine.cache.acquire(self.engine.namespace, &keys, 0);
                drop(lease.unwrap());
            }
        }
    }

    /// Stores a prompt, waits until it is durable, and remembers that, unless something was in the way.
    fn keep(&mut self, prompt: &str) {
        let before = (self.records(), self.refused());
        let (written, running) = (self.written(), self.running());
        let stored = self.engine.store(prompt);
        if !self.settle()
            || stored <= prompt.len()
            || before != (self.records(), self.refused())
            || !self.fresh
        {
            return;
        }
        let ((mut disk, mut remote), stats) = (before.0, self.engine.below.disk.stats());
        // What a tier had already may be hurt: unless it wrote all of it just now, or it was claimed before, anything
        // that was ever done to its files explains a loss.
        let now = self.written();
        let known = self.world.claims.get(prompt).cloned().unwrap_or_default();
        for (tier, record, known) in [(0, &mut disk, known.disk), (1, &mut remote, known.remote)] {
            let at = |counts: &[u64]| counts.get(tier).copied().unwrap_or(0);
            if at(&now) < at(&written) + at(&running) + stored as u64 {
                record.done = known.unwrap_or_default().done;
            } else {
                self.world.tally.add("claims of new writes", 1);
            }
        }
        let claim = Claim {
            disk: (!stats.out && stats.persistent).then_some(disk),
            remote: self.engine.below.remote.as_ref().and_then(|it| {
                let stats = it.stats();
                (!stats.out && stats.shared).then_some(remote)
            }),
        };
        if claim.disk.is_some() || claim.remote.is_some() {
            self.world.tally.add("prompts reported durable", 1);
            let harmless = self.world.is_harmless();
            self.world
                .tally
                .add("prompts durable where nothing harms", harmless.into());
            self.world.claims.insert(prompt.into(), claim);
        }
    }

    /// Entries that each tier has written.
    fn written(&self) -> Vec<u64> {
        let tiers = self.engine.cache.tiers();
        tiers.iter().map(|tier| tier.written).collect()
    }

    /// Entries that each tier is writing.
    fn running(&self) -> Vec<u64> {
        let both = &self.engine.below;
        let remote = both.remote.as_ref().map(|it| it.stats().writing);
        iter::once(both.disk.stats().writing)
            .chain(remote)
            .collect()
    }

    /// Writes that a tier did not take.
    fn refused(&self) -> Vec<u64> {
        let tiers = self.engine.cache.tiers();
        let of = |tier: &hybrid_pages::cache::TierStats| tier.declined + tier.failed_writes;
        let dropped = |stats: &DiskStats| stats.dropped;
        let mut refused: Vec<u64> = tiers.iter().map(of).collect();
        refused.push(dropped(&self.engine.below.disk.stats()));
        refused.extend(
            self.engine
                .below
                .remote
                .as_ref()
                .map(|it| it.stats().dropped),
        );
        refused
    }

    /// As a request does: looks a prompt up, waits for the store's answer, and loads what is there; every byte is
    /// compared. What was durable is there, or something explains why not.
    fn serve(&mut self, prompt: &str) {
        let begun = Instant::now();
        loop {
            let depth = self.restore(prompt);
            if depth == prompt.len() || !self.fresh {
                return;
            }
            let Some(claim) = self.world.claims.get(prompt) else {
                return;
            };
            let (disk, remote) = self.records();
            match claim.lost(&disk, &remote) {
                Ok((tier, cause)) => {
                    self.world.claims.remove(prompt);
                    self.world
                        .tally
                        .add(format!("lost from {tier}: {cause}"), 1);
                    self.world.tally.add("durable prompts lost with a cause", 1);
                    // On a busy machine a call may take too long.
                    let late = ["deadline", "an outage"].contains(&cause);
                    let unharmed = self.world.is_harmless() && !late;
                    self.world.tally.add(LOST_UNHARMED, unharmed.into());
                    return;
                }
                // What is being written has slots of the host, and a store that was just opened is being listed.
                Err(why) => assert!(
                    begun.elapsed() < Duration::from_secs(10),
                    "{prompt} was durable, and {depth} blocks are left. {why}\n{} {:?}\n{}",
                    self.engine.below.counts(),
                    self.engine.below.disk.take_notes(),
                    self.about(),
                ),
            }
            self.settle();
        }
    }

    /// Waits for a while until nothing is on its way. An index that can't be written is tried again after seconds.
    fn settle(&self) -> bool {
        let begun = Instant::now();
        loop {
            self.engine.cache.poll();
            let settled = self.engine.below.settled(Duration::from_millis(20));
            self.engine.cache.poll();
            if settled || begun.elapsed() > Duration::from_millis(1_200) {
                return settled;
            }
        }
    }

    fn restore(&mut self, prompt: &str) -> usize {
        let begun = Instant::now();
        while self.engine.below.remote.is_some() && self.engine.hit(prompt).asking {
            assert!(begun.elapsed() < LIMIT, "no answer: {}", self.about());
            std::thread::sleep(Duration::from_micros(200));
        }
        let read = |engine: &Engine| {
            let tiers = engine.cache.tiers();
            (tiers[0].read, tiers.get(1).map_or(0, |tier| tier.read))
        };
        let before = read(&self.engine);
        let depth = self.engine.restore(prompt);
        let after = read(&self.engine);
        let tally = &mut self.world.tally;
        if depth == 0 {
            tally.add("misses", 1);
            return 0;
        }
        tally.add("restores", 1);
        tally.add("from a disk", u64::from(after.0 > before.0));
        tally.add("from a store", u64::from(after.1 > before.1));
        tally.add(
            "ends inside blocks",
            u64::from(depth == prompt.len() && inside(prompt)),
        );
        depth
    }

    fn about(&self) -> String {
        let world = &self.world;
        format!(
            "faults {:?}, loses power: {}, quota {}, store {:?}, hostile: {}",
            world.kinds, world.loses_power, world.quota, world.store, world.hostile
        )
    }

    /// The process ends, is killed, or loses its power.
    fn end(mut self, power: bool) {
        let killed = power || self.below(2) == 0;
        if self.below(2) == 0 {
            self.settle();
        }
        for _ in 0..self.below(4) {
            let prompt = self.prompt();
            self.engine.store(&prompt);
        }
        let (disk, remote) = self.records();
        if killed {
            std::thread::sleep(Duration::from_micros(self.below(2_000) as u64));
            self.door.kill();
        }
        let ended = if killed { "kills" } else { "ends in order" };
        self.world.tally.add(ended, 1);
        for kind in Kind::ALL {
            self.world.tally.add(kind.name(), self.door.met(kind));
        }
        let door = self.door.clone();
        (self.world.disk, self.world.remote) = (disk, remote);
        drop(self.engine);
        // What the process has met while it ended.
        self.world
            .disk
            .done
            .add("a fault at the end", u64::from(door.harmed() > 0));
    }
}

fn inside(prompt: &str) -> bool {
    crate::support::cache_support::is_tail(prompt)
}

/// Seeds of worlds, each of which is lived in by one thread.
pub fn seeds(first: u64, thread: u64, threads: u64) -> impl Iterator<Item = u64> {
    let steps: Range<u64> = 0..u64::MAX;
    steps.map(move |step| (first << 40) + ((step * threads + thread) << 24))
}
