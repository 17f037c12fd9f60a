//! The tier over a Mooncake Store where it knows very much: what a new block of a prompt costs, and how long the cache
//! can wait for the tier's lock, by the blocks of a prompt and by what the tier remembers.
//!
//! The program is its own helper: a store that has nothing and takes everything, so that nothing but the tier is
//! measured. A prompt is looked up until all of it is known to be absent, its entries are written, and they are taken
//! back. `HYBRID_PAGES_BENCH_MOST=14` ends at prompts of 2^14 blocks, and so on: for a look.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::FromRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, EntryKey, PrefixKey, SlotId};
use hybrid_pages::policy;
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found};
use hybrid_pages_arena::Arena;
use hybrid_pages_mooncake::{Mooncake, MooncakeHandle, MooncakeOptions};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);
const SLOT: usize = 4096;

/// Answers that nothing is there, and that every write and removal went well.
fn help() {
    // SAFETY: the tier gives its helper a socket as standard input, and nobody else uses it here.
    let stream = unsafe { UnixStream::from_raw_fd(0) };
    let mut answers = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let message: Value = serde_json::from_str(&line).unwrap();
        let count = ["keys", "items"]
            .iter()
            .find_map(|name| message[name].as_array());
        let answer = match count {
            None => json!({"ready": true}),
            Some(many) => json!({"id": message["id"], "codes": vec![0; many.len()]}),
        };
        if writeln!(answers, "{answer}").is_err() {
            return;
        }
    }
}

/// How long each of some calls took.
#[derive(Default)]
struct Took(Vec<Duration>);

impl Took {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        self.0.push(begun.elapsed());
        result
    }

    /// Microseconds that only one call in so many exceeds.
    fn but_one_in(&mut self, many: usize) -> f64 {
        self.0.sort_unstable();
        let at = self.0.len() - 1 - self.0.len() / many;
        self.0[at].as_secs_f64() * 1e6
    }
}

struct Bench {
    tier: Mooncake,
    handle: MooncakeHandle,
    copies: u64,
    prompts: u64,
    _arena: Arena,
}

impl Bench {
    fn new() -> Self {
        let segment = Segment::new("kv", Dtype::Uint8, vec![SLOT]).unwrap();
        let layer = Layer::new("attention", vec![segment]).unwrap();
        let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
        let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
        let arena = Arena::create(&geometry, SLOT, 1 << 14).unwrap();
        let program = std::env::current_exe().unwrap();
        let command = vec![program.into_os_string(), "--helper".into()];
        let mut options = MooncakeOptions::new("localhost:1".into(), command);
        options.weighs = false;
        options.deadline = LIMIT;
        let shape = policy::EntrySizes {
            page: 1,
            window: 0,
            checkpoint: 0,
        };
        let policy = policy::by_name("lru", shape).unwrap();
        let tier = Mooncake::open(options, &geometry, SLOT, policy).unwrap();
        let handle = tier.handle();
        handle.connect(&arena, &[7; 32]).unwrap();
        let begun = Instant::now();
        while handle.stats().out {
            assert!(begun.elapsed() < LIMIT, "{:?}", handle.take_notes());
            std::thread::sleep(Duration::from_millis(1));
        }
        Self {
            tier,
            handle,
            copies: 0,
            prompts: 0,
            _arena: arena,
        }
    }

    fn keys(&mut self, blocks: usize) -> Vec<EntryKey> {
        self.prompts += 1;
        let namespace: Arc<[u8]> = Arc::from(&self.prompts.to_le_bytes()[..]);
        let key = |block: usize| EntryKey {
            namespace: Arc::clone(&namespace),
            prefix: PrefixKey::new(&block.to_le_bytes()).unwrap(),
            block_index: block,
            class_index: 0,
        };
        (0..blocks).map(key).collect()
    }

    /// Looks a prompt up until the store has answered.
    fn ask(&mut self, keys: &[EntryKey], took: &mut Took) {
        let begun = Instant::now();
        loop {
            let mut asking = 0;
            for key in keys {
                let found = took.time(|| self.tier.find(key));
                asking += usize::from(found == Found::Asking);
            }
            if asking == 0 {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{:?}", self.handle.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Writes a prompt, and takes every other entry back while it waits.
    fn write(&mut self, keys: &[EntryKey], took: &mut Took) {
        let before = self.copies;
        for (at, key) in keys.iter().enumerate() {
            let copy = CopyId(self.copies);
            self.copies += 1;
            let slots = [SlotId(at as u32)];
            took.time(|| self.tier.write(copy, key, &slots, &[7]));
            if at % 2 == 1 {
                took.time(|| self.tier.remove(key));
            }
        }
        let (begun, mut ended): (_, Vec<CopyEnd>) = (Instant::now(), Vec::new());
        while (ended.len() as u64) < self.copies - before {
            assert!(begun.elapsed() < LIMIT, "{:?}", self.handle.stats());
            std::thread::sleep(Duration::from_millis(1));
            took.time(|| self.tier.poll(&mut ended));
        }
    }

    /// A prompt of so many blocks: microseconds of a call that finds and of one that writes, in the middle, and what one
    /// in a thousand exceeds. The longest of all says how busy the machine is.
    fn prompt(&mut self, blocks: usize) -> [f64; 3] {
        let keys = self.keys(blocks);
        let (mut finds, mut writes) = (Took::default(), Took::default());
        self.ask(&keys, &mut finds);
        self.write(&keys, &mut writes);
        let slow = finds.but_one_in(1000).max(writes.but_one_in(1000));
        [finds.but_one_in(2), writes.but_one_in(2), slow]
    }
}

/// The middle of several rounds, by column.
fn median(mut rounds: Vec<[f64; 3]>) -> [f64; 3] {
    std::array::from_fn(|column| {
        rounds.sort_by(|one, two| one[column].total_cmp(&two[column]));
        rounds[rounds.len() / 2][column]
    })
}

fn print(what: &str, [find, write, slow]: [f64; 3]) {
    println!("| {what} | {find:.2} | {write:.2} | {slow:.0} |");
}

fn main() {
    if std::env::args().any(|word| word == "--helper") {
        return help();
    }
    let most = std::env::var("HYBRID_PAGES_BENCH_MOST").map_or(20, |most| most.parse().unwrap());
    println!("| blocks of a prompt | find, us | write, us | one call in 1,000 takes, us |");
    println!("|---|---|---|---|");
    let mut bench = Bench::new();
    for power in [8, 10, 12, 14] {
        bench.prompt(1 << power);
        let rounds = (0..9).map(|_| bench.prompt(1 << power)).collect();
        print(&format!("2^{power}"), median(rounds));
    }
    println!("| entries that are known | | | |");
    for power in [10, 14, 16, 18, 20]
        .into_iter()
        .filter(|&power| power <= most)
    {
        let mut bench = Bench::new();
        let (mut known, mut took) = (0, Took::default());
        while known < 1 << power {
            let keys = bench.keys(1 << 10);
            bench.ask(&keys, &mut took);
            known += keys.len();
        }
        let rounds = (0..9).map(|_| bench.prompt(1 << 10)).collect();
        print(&format!("2^{power}"), median(rounds));
    }
}
