//! What the policy of a disk learns outlives the process, and what it can't make sense of costs nothing else.

use crate::door;
use crate::support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use door::BadDoor;
use hybrid_pages::cache::Arrival;
use hybrid_pages::ids::{EntryId, TenantId};
use hybrid_pages::policy::{self, Hints, NewEntry, NewRequest, Policy};
use hybrid_pages_disk::DiskFailure;
use redb::{Database, ReadableDatabase, TableDefinition};
use support::cache_support::keys;
use support::{Engine, LIMIT, Setup};
use xxhash_rust::xxh3::xxh3_64;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const LEARNT: &str = "learnt";

fn setup(place: &Path) -> Setup {
    Setup {
        policy: "reuse",
        ..Setup::small(place)
    }
}

fn admit(engine: &Engine, prompt: &str, now: u64) {
    let arrival = Arrival {
        now,
        tokens: 16 * prompt.len() as u64,
        limit: prompt.len(),
        hints: Hints::NONE,
    };
    let keys = keys(prompt);
    engine
        .cache
        .admit(engine.namespace, &keys, arrival)
        .unwrap();
}

/// Conversations whose turns come every few seconds. Returns what was learned from them.
fn teach(engine: &Engine) -> Vec<u8> {
    let fresh = engine.below.learnt();
    for (second, prompt) in (0..).zip(["ab", "xy", "abc", "xyz", "abcd", "q"]) {
        admit(engine, prompt, second * 5_000);
        engine.keep(prompt);
    }
    let learnt = engine.below.learnt();
    assert_ne!(learnt, fresh);
    learnt
}

/// What the index has of it.
fn kept(setup: &Setup) -> Option<Vec<u8>> {
    let database = Database::open(setup.store().join("index.redb")).unwrap();
    let meta = database.begin_read().unwrap().open_table(META).unwrap();
    let found = meta.get(LEARNT).unwrap();
    found.map(|found| found.value().to_vec())
}

fn put(setup: &Setup, bytes: Option<&[u8]>) {
    let database = Database::open(setup.store().join("index.redb")).unwrap();
    let writing = database.begin_write().unwrap();
    {
        let mut meta = writing.open_table(META).unwrap();
        match bytes {
            Some(bytes) => drop(meta.insert(LEARNT, bytes).unwrap()),
            None => drop(meta.remove(LEARNT).unwrap()),
        }
    }
    writing.commit().unwrap();
}

fn sealed(learnt: &[u8]) -> Vec<u8> {
    [learnt, &xxh3_64(learnt).to_le_bytes()[..]].concat()
}

#[test]
fn the_next_process_goes_on_from_what_was_learned() {
    let place = tempfile::tempdir().unwrap();
    let setup = setup(place.path());
    let engine = setup.engine();
    let learnt = teach(&engine);
    drop(engine);
    assert_eq!(kept(&setup), Some(sealed(&learnt)), "as documented");
    let engine = setup.engine();
    assert_eq!(engine.below.learnt(), learnt);
    admit(&engine, "abcde", 60_000);
    admit(&engine, "abcdef", 90_000);
    let more = engine.below.learnt();
    assert_ne!(more, learnt);
    drop(engine);
    let engine = setup.engine();
    assert_eq!(engine.below.learnt(), more);
    assert_eq!(engine.stats().failures, [0; 17]);
}

#[test]
fn what_was_learned_a_minute_ago_outlives_a_kill() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = setup(place.path());
    let door = BadDoor::default();
    setup.options.door = Arc::new(door.clone());
    let engine = setup.engine();
    let learnt = teach(&engine);
    door.pass(61);
    // What a process that is killed now would leave.
    let begun = Instant::now();
    let mut copy = setup.clone();
    for number in 0.. {
        copy.options.path = place.path().join(format!("copy-{number}"));
        drop(copy.engine());
        let store = copy.store();
        for name in ["index.redb", "journal"] {
            std::fs::copy(setup.store().join(name), store.join(name)).unwrap();
        }
        // A file that was copied amid a commit may be damaged: that is set aside.
        if copy.engine().below.learnt() == learnt {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "it was never kept");
        engine.settle();
    }
}

#[test]
fn what_makes_no_sense_is_learned_anew_and_costs_no_entry() {
    let place = tempfile::tempdir().unwrap();
    let setup = setup(place.path());
    let learnt = teach(&setup.engine());
    let fresh = {
        let place = tempfile::tempdir().unwrap();
        let setup = self::setup(place.path());
        setup.engine().below.learnt()
    };
    let whole = sealed(&learnt);
    let mut flipped = whole.clone();
    flipped[100] ^= 1;
    let mut newer = learnt.clone();
    newer[0] += 1;
    let cases: [(&str, Option<Vec<u8>>, u64); 7] = [
        ("whole", Some(whole.clone()), 0),
        ("none, as before there was such a record", None, 0),
        ("a flipped bit", Some(flipped), 1),
        ("cut", Some(whole[..whole.len() - 1].to_vec()), 1),
        ("empty", Some(Vec::new()), 1),
        ("another version", Some(sealed(&newer)), 1),
        ("far too long", Some(sealed(&vec![0; 1 << 20])), 1),
    ];
    for (what, bytes, failures) in cases {
        put(&setup, bytes.as_deref());
        for failures in [failures, 0] {
            let engine = setup.engine();
            let found = engine.below.learnt();
            let expected = if what == "whole" { &learnt } else { &fresh };
            assert!(found == *expected, "{what}");
            let stats = engine.stats();
            assert_eq!(stats.failed(DiskFailure::Learnt), failures, "{what}");
            assert_eq!(stats.failures.iter().sum::<u64>(), failures, "{what}");
            assert_eq!(engine.below.take_notes().len() as u64, failures, "{what}");
            assert_eq!(engine.restore("abcd"), 4, "{what}");
        }
    }
}

#[test]
fn a_policy_that_learns_nothing_keeps_nothing_and_leaves_what_others_kept() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    assert_eq!(kept(&setup), None);
    put(&setup, Some(b"of another policy"));
    let whole = sealed(b"of another policy");
    put(&setup, Some(&whole));
    let engine = setup.engine();
    assert_eq!(engine.stats().failures, [0; 17]);
    drop(engine);
    assert_eq!(kept(&setup), Some(whole));
}

/// Notes how long entries were not used before they entered, and wants none.
struct Witness(Arc<Mutex<Vec<Option<u64>>>>, Box<dyn Policy>);

impl Policy for Witness {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        self.1.admit(request, admitted);
    }

    fn wants(&mut self, _: &NewEntry) -> bool {
        false
    }

    fn enter(&mut self, entry: &NewEntry) {
        self.0.lock().unwrap().push(entry.unused);
        self.1.enter(entry);
    }

    fn release(&mut self, id: EntryId) {
        self.1.release(id);
    }

    fn hold(&mut self, id: EntryId) {
        self.1.hold(id);
    }

    fn leave(&mut self, id: EntryId) {
        self.1.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.1.victim()
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.1.victim_of(tenant)
    }

    fn bytes(&self) -> usize {
        self.1.bytes()
    }
}

/// An engine over a disk with such a policy, and what that notes.
fn watched(setup: &Setup) -> (Engine, Arc<Mutex<Vec<Option<u64>>>>) {
    let policy = policy::by_name("lru", setup.config(setup.slots).shape()).unwrap();
    let seen = Arc::default();
    let policy = Witness(Arc::clone(&seen), policy);
    let engine = setup.unconnected_with(Box::new(policy)).unwrap();
    engine
        .below
        .connect(&engine.arena, &setup.identity)
        .unwrap();
    (engine, seen)
}

#[test]
fn a_policy_is_told_how_old_an_entry_is_that_an_earlier_process_left() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    let door = BadDoor::default();
    setup.options.door = Arc::new(door.clone());
    setup.engine().keep("ab");
    door.pass(7_200);
    let (engine, seen) = watched(&setup);
    assert_eq!(engine.hit("ab").blocks, 2);
    engine.keep("xy");
    let before = Some(7_200_000);
    let expected = [before, before, before, None, None, None];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn a_disk_that_earlier_processes_have_filled_asks_what_is_wanted() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    for (quota, written) in [(1 << 30, 3), (300_000, 0)] {
        setup.options.quota_bytes = quota;
        setup.options.path = place.path().join(quota.to_string());
        let engine = setup.engine();
        for prompt in ["abcd", "efgh", "ijkl", "mnop"] {
            engine.keep(prompt);
        }
        drop(engine);
        let (engine, _) = watched(&setup);
        engine.store("xy");
        engine.settle();
        assert_eq!(engine.stats().writes, written, "{quota}");
    }
}
