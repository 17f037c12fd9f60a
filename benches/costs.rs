//! What a step costs as prompts and stores grow: microseconds for each new block, and the longest call.
//!
//! `cargo bench --bench costs`. A prompt of so many blocks, of which the store has everything, grows by 256 blocks one at
//! a time, beside so many entries of others. Each of these calls takes the lock once, so the longest is a bound on how
//! long the lock is held. Last come calls over whole prompts, once a request.

use std::time::Duration;

use hybrid_pages::cache::{Arrival, Cache, CacheConfig, ClassConfig};
use hybrid_pages::ids::{ClassKind, EntryKey, NamespaceId, PrefixKey, SlotId};
use hybrid_pages::policy::{self, Hints, NewEntry};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room, Tier, name_of};

const MORE: usize = 256;

#[derive(Clone, Copy)]
enum Kind {
    Host,
    Disk,
    Waits,
    Asks,
}

struct Null {
    room: Room,
    kind: Kind,
    ended: Vec<CopyId>,
}

impl Tier for Null {
    fn name(&self) -> &str {
        "null"
    }
    fn room(&self) -> &Room {
        &self.room
    }
    fn room_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Below for Null {
    fn queue_slots(&self) -> u64 {
        u64::MAX / 2
    }
    fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Waits | Kind::Asks)
    }
    fn waits_for_proof(&self) -> bool {
        matches!(self.kind, Kind::Waits)
    }
    fn accepts(&mut self, entry: &NewEntry) -> bool {
        !matches!(self.kind, Kind::Waits) || entry.proven
    }
    fn write(&mut self, copy: CopyId, _: &EntryKey, _: &[SlotId], _: &[u64]) {
        self.ended.push(copy);
    }
    fn read(&mut self, copy: CopyId, _: &EntryKey, _: &[SlotId]) {
        self.ended.push(copy);
    }
    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        let sums = || Ok(vec![7]);
        let all = self.ended.drain(..);
        ended.extend(all.map(|copy| CopyEnd {
            copy,
            result: sums(),
        }));
    }
    fn find(&mut self, key: &EntryKey) -> Found {
        std::hint::black_box(name_of(key));
        match self.kind {
            Kind::Asks => Found::Asking,
            _ => Found::Absent,
        }
    }
    fn remove(&mut self, _: &EntryKey) {}
    fn clear(&mut self) {}
}

fn prompt(seed: usize, blocks: usize) -> Vec<PrefixKey> {
    let word =
        |block: usize| ((seed << 24 | (block + 1)) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..blocks)
        .map(|block| {
            PrefixKey::new(&word(block).to_le_bytes().repeat(4)).expect("32 bytes are a key")
        })
        .collect()
}

/// Time that this thread has had a processor: others on the machine don't count.
fn busy() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Time of all calls of one kind, and of the longest.
#[derive(Default, Clone, Copy)]
struct Calls(Duration, Duration);

impl Calls {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begun = busy();
        let answer = call();
        let took = busy() - begun;
        self.0 += took;
        self.1 = self.1.max(took);
        answer
    }

    fn each(self, calls: usize) -> f64 {
        self.0.as_secs_f64() * 1e6 / calls as f64
    }
}

fn store(cache: &Cache, namespace: NamespaceId, keys: &[PrefixKey], from: usize) {
    let arrival = Arrival {
        now: 1,
        tokens: 1,
        limit: keys.len(),
        hints: Hints::NONE,
    };
    cache
        .admit(namespace, keys, arrival)
        .expect("the namespace is known");
    for from in (from..keys.len()).step_by(512) {
        let to = keys.len().min(from + 512);
        let all: Vec<_> = (from..to)
            .flat_map(|block| [(0, block), (1, block)])
            .collect();
        let mut lease = cache
            .reserve(namespace, &keys[..to], &all)
            .expect("the entries are valid");
        let sums = vec![[7_u64]; lease.entries().len()];
        lease.commit(&sums).expect("one checksum per rank");
        cache.poll();
    }
}

fn run(name: &str, kind: Kind, blocks: usize, entries: usize) {
    let class = |kind, window_blocks| ClassConfig {
        kind,
        window_blocks,
        slots_per_entry: 1,
    };
    let config = CacheConfig {
        classes: vec![class(ClassKind::Attention, 0), class(ClassKind::Window, 8)],
        ranks: 1,
        slots: entries + 3 * (blocks + MORE),
        slot_bytes: 1 << 16,
        policy: "reuse".into(),
        tenant_slots: None,
    };
    let room = || {
        Room::new(
            1 << 24,
            policy::by_name("reuse", config.shape()).expect("the name is known"),
        )
    };
    let tier = || -> Box<dyn Below> {
        Box::new(Null {
            room: room(),
            kind,
            ended: vec![],
        })
    };
    let below = (!matches!(kind, Kind::Host)).then(tier);
    let cache = Cache::with_tiers(&config, below.into_iter().collect())
        .expect("the configuration is valid");
    let namespace = cache.namespace(b"bench").expect("there is a number left");
    for other in 0..entries / 512 {
        store(&cache, namespace, &prompt(other + 2, 256), 0);
    }
    let keys = prompt(1, blocks + MORE);
    store(&cache, namespace, &keys[..blocks], 0);
    let [mut reserve, mut commit, mut poll, mut look] = [Calls::default(); 4];
    for block in blocks..blocks + MORE {
        let keys = &keys[..=block];
        let wanted = [(0, block), (1, block)];
        let mut lease = reserve
            .time(|| cache.reserve(namespace, keys, &wanted))
            .expect("the entries are valid");
        let sums = vec![[7_u64]; lease.entries().len()];
        commit
            .time(|| lease.commit(&sums))
            .expect("one checksum per rank");
        poll.time(|| cache.poll());
    }
    for _ in 0..16 {
        look.time(|| cache.lookup(namespace, &keys))
            .expect("the namespace is known");
    }
    let mut admit = Calls::default();
    let arrival = Arrival {
        now: 2,
        tokens: 1,
        limit: keys.len(),
        hints: Hints::NONE,
    };
    admit
        .time(|| cache.admit(namespace, &keys, arrival))
        .expect("the namespace is known");
    let longest = reserve.1.max(commit.1).max(poll.1);
    println!(
        "| {name} | {blocks} | {entries} | {:.1} | {:.1} | {:.1} | {} | {:.0} | {:.0} |",
        reserve.each(MORE),
        commit.each(MORE),
        poll.each(MORE),
        longest.as_micros(),
        look.each(16),
        admit.each(1),
    );
}

fn main() {
    println!("| tiers | blocks | entries | reserve | commit | poll | longest | lookup | admit |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let kinds = [
        ("host alone", Kind::Host),
        ("disk", Kind::Disk),
        ("remote that waits for proof", Kind::Waits),
        ("remote that asks", Kind::Asks),
    ];
    for (name, kind) in kinds {
        for blocks in [1 << 8, 1 << 11, 1 << 14] {
            for entries in [1 << 10, 1 << 14, 1 << 17, 1 << 20] {
                run(name, kind, blocks, entries);
            }
        }
    }
}
