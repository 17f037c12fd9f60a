//! The cost of a policy: per request, per call at worst, and in memory.
//!
//! `request`: by turns a new prompt of 24 blocks, and the next turn of one (24 blocks known, 2 new), each
//! with one checkpoint, in a full cache with room for 100,000 pages, and as much is evicted. Before it, for each
//! policy with room for 1,000,000 pages: the longest of all its calls while that many entries come and as many
//! go, and its bytes per page of room.

use std::collections::VecDeque;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use hybrid_pages::ids::{EntryId, TenantId};
use hybrid_pages::policy::{self, EntryKind, EntrySizes, Hints, NewEntry, NewRequest, Policy};
use hybrid_pages_lab::policies as names;

const RATIO: u32 = 3;
const SHAPE: EntrySizes = EntrySizes {
    page: 1,
    window: 0,
    checkpoint: RATIO,
};

/// Time that this thread ran: a call is not charged for what else the machine did.
fn ran() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A host of counts: conversations of one chain each, going round.
struct Host {
    policy: Box<dyn Policy>,
    room: u64,
    taken: u64,
    /// Of each entry in use its size, and how often its number was given before.
    entries: Vec<(u32, u32)>,
    vacant: Vec<u32>,
    now: u64,
    number: u64,
    /// Conversations with a next turn.
    open: VecDeque<Chain>,
    longest: Duration,
    timed: bool,
}

/// An entry as long as it is there: its number, and how often that was given before.
type Held = (EntryId, u32);

/// A conversation: names and pages of its blocks, and the checkpoint at its end.
#[derive(Default)]
struct Chain {
    blocks: Vec<(u64, Held)>,
    checkpoint: Option<Held>,
}

fn name(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Host {
    fn new(policy: &str, room: u64) -> Self {
        Self {
            policy: policy::by_name(policy, SHAPE).expect("the name is known"),
            room,
            taken: 0,
            entries: Vec::new(),
            vacant: Vec::new(),
            now: 0,
            number: 0,
            open: VecDeque::new(),
            longest: Duration::ZERO,
            timed: true,
        }
    }

    /// One call of the policy, timed.
    fn call<T>(&mut self, call: impl FnOnce(&mut dyn Policy) -> T) -> T {
        if !self.timed {
            return call(self.policy.as_mut());
        }
        let start = ran();
        let result = call(self.policy.as_mut());
        self.longest = self.longest.max(ran() - start);
        result
    }

    fn enter(
        &mut self,
        kind: EntryKind,
        parent: Option<EntryId>,
        depth: usize,
        boundary: u64,
    ) -> Held {
        let size = if kind == EntryKind::Page { 1 } else { RATIO };
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push((0, 0));
            self.entries.len() as u32 - 1
        });
        self.entries[id as usize].0 = size;
        self.taken += u64::from(size);
        let entry = NewEntry {
            id: EntryId(id),
            kind,
            parent,
            depth: depth as u32,
            size,
            boundary,
            tenant: TenantId::NONE,
            unused: None,
            proven: false,
        };
        self.call(|policy| policy.enter(&entry));
        (entry.id, self.entries[id as usize].1)
    }

    fn is_there(&self, (id, given): Held) -> bool {
        self.entries[id.0 as usize].1 == given
    }

    /// A new prompt of 24 blocks, or 2 blocks more for one that is open.
    fn request(&mut self) {
        self.now += 300;
        self.number += 1;
        let mut chain = if self.number.is_multiple_of(2) {
            self.open.pop_front().unwrap_or_default()
        } else {
            Chain::default()
        };
        let known = chain.blocks.len();
        let fresh = if known == 0 { 24 } else { 2 };
        let mut names: Vec<u64> = chain.blocks.iter().map(|&(name, _)| name).collect();
        names.extend((0..fresh).map(|block| name(self.number * 64 + block)));
        let there = |&(_, page): &(u64, Held)| self.is_there(page);
        let pages = chain.blocks.iter().take_while(|block| there(block)).count();
        let whole = pages == known;
        let used = chain
            .checkpoint
            .filter(|&held| whole && self.is_there(held));
        let mut admitted = Vec::new();
        let request = NewRequest {
            now: self.now,
            tokens: names.len() as u64 * 512 + 100,
            boundaries: &names,
            limit: names.len(),
            resumed: used.map_or(0, |_| known),
            pages,
            seen: known,
            free: self.room - self.taken,
            hints: Hints::NONE,
        };
        self.call(|policy| policy.admit(&request, &mut admitted));
        chain.blocks.truncate(pages);
        let resident: Vec<EntryId> = chain.blocks.iter().map(|&(_, (page, _))| page).collect();
        for id in resident.into_iter().chain(used.map(|(id, _)| id)) {
            self.call(|policy| policy.hold(id));
        }
        for (block, &name) in names.iter().enumerate().skip(pages) {
            let parent = chain.blocks.last().map(|&(_, (page, _))| page);
            let page = self.enter(EntryKind::Page, parent, block + 1, name);
            chain.blocks.push((name, page));
        }
        let (end, &(name, (page, _))) = (names.len(), chain.blocks.last().expect("24 or more"));
        let made = self.enter(EntryKind::Checkpoint, Some(page), end, name);
        chain.checkpoint = Some(made);
        // Deepest first, a block's checkpoint before its page.
        self.call(|policy| policy.release(made.0));
        for at in (0..end).rev() {
            if let Some((id, _)) = used.filter(|_| at + 1 == known) {
                self.call(|policy| policy.release(id));
            }
            let (_, (page, _)) = chain.blocks[at];
            self.call(|policy| policy.release(page));
        }
        self.call(|policy| policy.finish(&names, names.len(), 100));
        if known == 0 {
            self.open.push_back(chain);
            if self.open.len() > 1000 {
                self.open.pop_front();
            }
        }
        while self.taken > self.room {
            let victim = self
                .call(|policy| policy.victim())
                .expect("something is evictable");
            self.call(|policy| policy.leave(victim));
            let (size, given) = &mut self.entries[victim.0 as usize];
            self.taken -= u64::from(*size);
            *given += 1;
            self.vacant.push(victim.0);
        }
    }
}

fn policies(c: &mut Criterion) {
    let mut group = c.benchmark_group("request");
    for name in names() {
        const ROOM: u64 = 1_000_000;
        let mut host = Host::new(name, ROOM);
        for _ in 0..80_000 {
            host.request();
        }
        let bytes = host.policy.bytes() as u64;
        println!(
            "{name}: longest call {:?}, {} bytes per page with room for {ROOM}",
            host.longest,
            bytes / ROOM
        );
        let mut host = Host::new(name, 100_000);
        host.timed = false;
        for _ in 0..10_000 {
            host.request();
        }
        group.bench_function(*name, |b| {
            b.iter_custom(|requests| {
                let start = ran();
                (0..requests).for_each(|_| host.request());
                ran() - start
            });
        });
    }
    group.finish();
}

criterion_group!(benches, policies);
criterion_main!(benches);
