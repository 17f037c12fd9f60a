//! What the calls of a tier below the host cost as prompts and stores grow, counted and not timed.
//! `HYBRID_PAGES_SIZES=full` goes on to prompts of 2^12 blocks and stores of 2^16 entries.

#[path = "counting.rs"]
pub mod counting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counting::{Work, work};
use hybrid_pages::ids::{EntryId, EntryKey, PrefixKey, SlotId, TenantId};
use hybrid_pages::policy::{EntryKind, NewEntry};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found};

const LIMIT: Duration = Duration::from_secs(60);
/// Blocks of a prompt, and entries beside it: much more of each in one case.
fn sizes() -> [(usize, usize); 3] {
    if std::env::var("HYBRID_PAGES_SIZES").is_ok_and(|it| it == "full") {
        return [(1 << 6, 1 << 8), (1 << 12, 1 << 8), (1 << 6, 1 << 16)];
    }
    [(1 << 6, 1 << 8), (1 << 9, 1 << 8), (1 << 6, 1 << 11)]
}

/// Slots that a tier has at least.
pub const SLOTS: usize = 1 << 12;

/// A tier, whose writes have these checksums.
pub struct Scene<'a> {
    pub tier: Box<dyn Below + 'a>,
    pub sums: Vec<u64>,
    /// Reads the counts.
    pub stats: Box<dyn Fn() + 'a>,
    /// Does the work of the tier's threads, or lets them do it. Returns whether nothing is left.
    pub works: Box<dyn Fn() -> bool + 'a>,
    copies: u64,
    running: u64,
}

type Costs = BTreeMap<&'static str, Work>;

impl<'a> Scene<'a> {
    pub fn new(
        tier: Box<dyn Below + 'a>,
        sums: Vec<u64>,
        stats: Box<dyn Fn() + 'a>,
        works: Box<dyn Fn() -> bool + 'a>,
    ) -> Self {
        let (copies, running) = (0, 0);
        Self {
            tier,
            sums,
            stats,
            works,
            copies,
            running,
        }
    }

    fn copy(&mut self) -> CopyId {
        self.copies += 1;
        self.running += 1;
        CopyId(self.copies)
    }

    fn write(&mut self, at: usize, key: &EntryKey) {
        let copy = self.copy();
        self.tier.write(copy, key, &[SlotId(at as u32)], &self.sums);
    }

    fn read(&mut self, at: usize, key: &EntryKey) {
        let copy = self.copy();
        self.tier.read(copy, key, &[SlotId(at as u32)]);
    }

    /// Waits until all copies have ended. Returns the work of the last poll, which takes them all.
    fn ended(&mut self) -> Work {
        let begun = Instant::now();
        while !(self.works)() {
            assert!(begun.elapsed() < LIMIT, "copies that end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut ended: Vec<CopyEnd> = Vec::with_capacity(2 * SLOTS);
        let ((), cost) = work(|| self.tier.poll(&mut ended));
        for end in ended {
            end.result.expect("a copy that works");
            self.running -= 1;
        }
        assert_eq!(self.running, 0);
        cost
    }

    fn answered(&mut self, keys: &[EntryKey]) {
        let begun = Instant::now();
        loop {
            let asking = keys
                .iter()
                .filter(|key| self.tier.find(key) == Found::Asking);
            if asking.count() == 0 {
                return;
            }
            (self.works)();
            assert!(begun.elapsed() < LIMIT, "an answer");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn fill(&mut self, entries: usize) {
        for first in (0..entries).step_by(SLOTS) {
            let keys = prompt(1000 + first, SLOTS.min(entries));
            keys.iter()
                .enumerate()
                .for_each(|(at, key)| self.write(at, key));
            self.ended();
        }
    }

    /// The cost of each call for one block; of others, the cost of a call.
    fn costs(&mut self, blocks: usize) -> Costs {
        let keys = prompt(1, blocks);
        let mut costs = Costs::new();
        let for_a_block = |all: Work| Work {
            bytes: all.bytes / blocks as u64,
            calls: all.calls / blocks as u64,
            largest: 0,
        };
        let mut each = |name: &'static str, call: &mut dyn FnMut(usize, &EntryKey)| {
            let ((), all) = work(|| keys.iter().enumerate().for_each(|(at, key)| call(at, key)));
            costs.insert(name, for_a_block(all));
        };
        self.answered(&keys);
        each("look up what is absent", &mut |_, key| {
            drop(self.tier.find(key))
        });
        each("accept", &mut |at, _| {
            assert!(self.tier.accepts(&entry(at)));
        });
        each("write", &mut |at, key| self.write(at, key));
        let ((), counts) = work(|| (self.stats)());
        let written = self.ended();
        self.answered(&keys);
        each("look up", &mut |_, key| {
            assert!(matches!(self.tier.find(key), Found::Here(_)));
        });
        each("may have", &mut |_, key| {
            assert_eq!(self.tier.may_have(key), Some(true));
        });
        each("read", &mut |at, key| self.read(at, key));
        self.ended();
        each("write what is there", &mut |at, key| self.write(at, key));
        self.ended();
        each("forget", &mut |_, key| self.tier.forget(key));
        each("remove", &mut |_, key| self.tier.remove(key));
        let (_, tails) = work(|| self.tier.tail_lengths(b"bench", 7, &mut Vec::new()));
        let idle = self.ended();
        costs.extend([
            ("counts", counts),
            ("poll after all were written", for_a_block(written)),
            ("tails", tails),
            ("poll", idle),
        ]);
        costs
    }
}

fn prompt(seed: usize, blocks: usize) -> Vec<EntryKey> {
    let namespace: Arc<[u8]> = Arc::from(&b"bench"[..]);
    let key = |block: usize| EntryKey {
        namespace: Arc::clone(&namespace),
        prefix: PrefixKey::new(&(seed << 24 | block).to_le_bytes()).expect("a key"),
        block_index: block,
        class_index: 0,
    };
    (0..blocks).map(key).collect()
}

const fn entry(number: usize) -> NewEntry {
    NewEntry {
        id: EntryId(number as u32),
        kind: EntryKind::Page,
        parent: None,
        depth: 1,
        size: 1,
        boundary: 1,
        tenant: TenantId::NONE,
        unused: None,
        proven: true,
    }
}

/// Fails if a call for a block costs more in a longer prompt or a larger store, or another call in either, or a reset.
pub fn check<'a>(make: impl Fn() -> Scene<'a>) {
    let costs = |(blocks, entries)| {
        let mut scene = make();
        scene.fill(entries);
        let mut costs = scene.costs(blocks);
        // Some of these are still waiting when the reset comes.
        let waiting = prompt(2, blocks);
        let write = |(at, key): (usize, &EntryKey)| scene.write(at, key);
        waiting.iter().enumerate().for_each(write);
        let ((), clear) = work(|| scene.tier.clear());
        costs.insert("clear", clear);
        costs
    };
    let found = sizes().map(costs);
    for (costs, size) in found.iter().zip(sizes()).skip(1) {
        for (name, cost) in costs {
            let least = found[0][name];
            // A table that grows takes some bytes for each entry.
            let grown = cost.bytes > 2 * least.bytes + 1024 || cost.calls > 2 * least.calls + 16;
            assert!(
                !grown,
                "{name}: expected no more work than with {:?}, {least:?}, found {cost:?} with {size:?}",
                sizes()[0]
            );
        }
    }
}
