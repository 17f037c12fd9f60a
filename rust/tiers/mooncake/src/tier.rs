//! The store as a tier. Calls of the cache become work for the helper, and no call waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hybrid_pages::error::Result;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::{EntryKey, SlotId};
use hybrid_pages::policy::{NewEntry, Policy};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room};
use hybrid_pages_tiers::{
    Name, entry_sizes, largest_entry, name_of, queue_slots, refused, shared_room, tail_group,
};

use crate::handle::MooncakeHandle;
use crate::link::end_puts;
use crate::options::MooncakeOptions;
use crate::shared::MooncakeShared;
use crate::state::{Get, HelperWork, KnownEntry, MooncakeState, PORTION, Put};
use crate::stats::MooncakeFailure;
use crate::value::{first_mark, marks};

/// Most entries of the store that the cache keeps track of. The store's own limit is unknown.
const MOST_ENTRIES: u64 = 1 << 20;

/// A tier in a Mooncake Store. The crate's documentation describes it.
pub struct Mooncake {
    room: Room,
    shared: Arc<MooncakeShared>,
    queue_slots: u64,
}

impl Mooncake {
    /// Makes a tier for the entries of a geometry in slots of `slot_bytes`. `policy` is an empty policy for this tier
    /// alone, and decides which entries the cache keeps track of. The store is used from [`MooncakeHandle::connect`]
    /// on.
    ///
    /// # Errors
    /// [`InvalidArgument`](hybrid_pages::error::Error::InvalidArgument) for a setting out of range,
    /// [`Remote`](hybrid_pages::error::Error::Remote) without memory for staging.
    pub fn open(
        options: MooncakeOptions,
        geometry: &Geometry,
        slot_bytes: usize,
        policy: Box<dyn Policy>,
    ) -> Result<Self> {
        options.check()?;
        let sizes = entry_sizes(geometry, slot_bytes)?;
        let largest = largest_entry(&sizes);
        Ok(Self {
            room: shared_room(MOST_ENTRIES, largest, policy),
            queue_slots: queue_slots(options.queue_bytes, slot_bytes, largest),
            shared: Arc::new(MooncakeShared::new(
                options,
                &sizes,
                (geometry.ranks(), geometry.block_tokens()),
                slot_bytes,
            )?),
        })
    }

    /// A handle that connects the tier and reads its counts.
    #[must_use]
    pub fn handle(&self) -> MooncakeHandle {
        MooncakeHandle(Arc::clone(&self.shared))
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<MooncakeShared> {
        Arc::clone(&self.shared)
    }

    /// Gives up the write of a name; if it waits, it will not begin. Returns whether it is under way.
    fn undo_write(&self, state: &mut MooncakeState, name: &Name, gone: bool) -> bool {
        if let Some(copy) = state.take_put(name).and_then(|put| put.copy) {
            let error = refused("an entry that is wanted", "that it is to go");
            self.shared.end(copy, Err(error));
        }
        let mut under_way = false;
        for batch in state.running.values_mut() {
            if let HelperWork::Put(puts) = &mut batch.work {
                for put in puts.iter_mut().filter(|put| put.name == *name) {
                    put.undone |= gone;
                    under_way = true;
                }
            }
        }
        under_way
    }

    /// What is known of a value, which the store is asked about if nothing is.
    fn known_or_asked(&self, state: &mut MooncakeState, name: Name, class: usize) -> KnownEntry {
        if !state.answers_now() {
            return KnownEntry::Absent;
        }
        let known = state.known(&name);
        if known != KnownEntry::Unknown || !state.may_ask() {
            return known;
        }
        state.ask(name, class);
        self.shared.ledger.count(|counts| counts.asked += 1);
        self.shared.bell.notify_all();
        KnownEntry::Asking
    }

    /// Marks the number of tokens of a tail that is written, so that others learn to look for it.
    fn mark(&self, state: &mut MooncakeState, key: &EntryKey) {
        let shared = &self.shared;
        let Some((stem, tokens)) = key.prefix.stem().zip(key.prefix.tail_tokens()) else {
            return;
        };
        let group = tail_group(&key.namespace, stem);
        let mut marks = marks(group, shared.block_tokens);
        let mark = marks.find(|(_, marked)| marked.contains(&tokens));
        // They are written with every tail, since the store may have evicted them.
        let names = mark.map(|(name, _)| [first_mark(group), name]);
        for name in names.into_iter().flatten() {
            if state.is_waiting(&name) {
                continue;
            }
            state.put(Put {
                copy: None,
                name,
                class: shared.mark_class(),
                slots: Vec::new(),
                sums: vec![0; shared.ranks],
                begun: Instant::now(),
                undone: false,
            });
        }
    }

    fn is_ours(&self, class: usize, slots: &[SlotId]) -> bool {
        let planes = self.shared.planes.get();
        let class = self.shared.classes.get(class);
        planes
            .zip(class)
            .is_some_and(|(planes, class)| planes.hold(slots, class.shard_bytes))
    }
}

hybrid_pages_tiers::impl_tier!(Mooncake, "remote");

impl Below for Mooncake {
    fn queue_slots(&self) -> u64 {
        self.queue_slots
    }

    fn waits_for_proof(&self) -> bool {
        self.shared.options.weighs
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn expects(&self, _entries: u64, bytes: u64) -> Option<Duration> {
        let weighs = self.shared.options.weighs;
        weighs.then(|| self.shared.state_first().speed.expects(bytes))
    }

    fn accepts(&mut self, entry: &NewEntry) -> bool {
        if self.shared.options.weighs && !entry.proven {
            self.shared.ledger.count(|counts| counts.unproven += 1);
            return false;
        }
        let able = self.shared.state_first().takes_writes();
        if !able {
            self.shared.ledger.count(|counts| counts.dropped += 1);
        }
        able
    }

    fn write(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId], checksums: &[u64]) {
        let shared = &self.shared;
        let (name, class) = (name_of(key), key.class_index);
        let mut state = shared.state_first();
        if !state.takes_writes() {
            return shared.end(copy, Err(refused("a store that takes writes", "none")));
        }
        if !self.is_ours(class, slots) || checksums.len() != shared.ranks {
            return shared.end(copy, Err(refused("slots of the arena", "others")));
        }
        if state.known(&name) == KnownEntry::Here(checksums.to_vec()) {
            shared.ledger.count(|counts| counts.spared_writes += 1);
            return shared.end(copy, Ok(Vec::new()));
        }
        self.undo_write(&mut state, &name, false);
        state.put(Put {
            copy: Some(copy),
            name,
            class,
            slots: slots.to_vec(),
            sums: checksums.to_vec(),
            begun: Instant::now(),
            undone: false,
        });
        self.mark(&mut state, key);
        shared.bell.notify_all();
    }

    fn read(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId]) {
        let shared = &self.shared;
        let mut state = shared.state_first();
        if !state.answers_now() {
            return shared.end(copy, Err(refused("a store that answers", "an outage")));
        }
        if !self.is_ours(key.class_index, slots) {
            return shared.end(copy, Err(refused("slots of the arena", "others")));
        }
        state.gets.push_back(Get {
            copy: Some(copy),
            name: name_of(key),
            class: key.class_index,
            slots: slots.to_vec(),
            begun: Instant::now(),
            cell: 0,
        });
        shared.bell.notify_all();
    }

    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        self.shared.ended.take(ended);
    }

    /// Looks an entry up. If the store has to be asked, it is asked about all entries of the boundary at once.
    fn find(&mut self, key: &EntryKey) -> Found {
        let shared = &self.shared;
        let name = name_of(key);
        let mut state = shared.state_first();
        let known = if state.answers_now() {
            state.known(&name)
        } else {
            KnownEntry::Absent
        };
        match known {
            KnownEntry::Here(sums) => {
                shared.ledger.count(|counts| counts.hits += 1);
                Found::Here(sums)
            }
            KnownEntry::Absent => {
                shared.ledger.count(|counts| counts.misses += 1);
                Found::Absent
            }
            KnownEntry::Asking => Found::Asking,
            KnownEntry::Unknown if !state.may_ask() => {
                let what = "expected fewer questions at a time, found the queue full";
                shared.failed(MooncakeFailure::Ask, what);
                shared.ledger.count(|counts| counts.misses += 1);
                Found::Absent
            }
            KnownEntry::Unknown => {
                for class in 0..shared.mark_class() {
                    let name = name_of(&EntryKey {
                        class_index: class,
                        ..key.clone()
                    });
                    if state.known(&name) == KnownEntry::Unknown {
                        state.ask(name, class);
                        shared.ledger.count(|counts| counts.asked += 1);
                    }
                }
                shared.bell.notify_all();
                Found::Asking
            }
        }
    }

    fn may_have(&mut self, key: &EntryKey) -> Option<bool> {
        let mut state = self.shared.state_first();
        let known = self.known_or_asked(&mut state, name_of(key), key.class_index);
        (known != KnownEntry::Asking).then_some(matches!(known, KnownEntry::Here(_)))
    }

    /// Adds the lengths that are marked. Of a group without tails the store is asked one question; of others, in a
    /// later call, about all marks at once.
    fn tail_lengths(&mut self, namespace: &[u8], stem: u64, lengths: &mut Vec<u32>) -> bool {
        let shared = &self.shared;
        let mut state = shared.state_first();
        let group = tail_group(namespace, stem);
        let mut asking =
            match self.known_or_asked(&mut state, first_mark(group), shared.mark_class()) {
                KnownEntry::Here(_) => false,
                known => return known == KnownEntry::Asking,
            };
        for (name, marked) in marks(group, shared.block_tokens) {
            match self.known_or_asked(&mut state, name, shared.mark_class()) {
                KnownEntry::Here(_) => lengths.extend(marked),
                KnownEntry::Asking => asking = true,
                _ => {}
            }
        }
        asking
    }

    /// Undoes a write that waits. A value in the store stays, since others may use it.
    fn evict(&mut self, key: &EntryKey) {
        let name = name_of(key);
        self.undo_write(&mut self.shared.state_first(), &name, false);
    }

    fn remove(&mut self, key: &EntryKey) {
        let name = name_of(key);
        let mut state = self.shared.state_first();
        self.undo_write(&mut state, &name, true);
        state.unsay(&name);
        // An entry that others have put stays in the store, but this process leaves it alone for a while.
        if !state.take_back(name) {
            state.suspect(name);
        }
    }

    fn forget(&mut self, key: &EntryKey) {
        let name = name_of(key);
        let mut state = self.shared.state_first();
        self.undo_write(&mut state, &name, false);
        state.unsay(&name);
    }

    /// Stops sharing, since the identity does not describe this engine's results any more, and removes all entries
    /// that this process has written.
    fn clear(&mut self) {
        let shared = &self.shared;
        if shared.is_inherited() {
            return;
        }
        let mut state = shared.state_first();
        if state.closed || std::mem::replace(&mut state.cleared, true) {
            return;
        }
        let waiting = state.take_puts(PORTION, |_| true);
        end_puts(shared, waiting, "a reset"); // The link ends the others.
        state.take_all_back();
        let forgotten = state.forgotten;
        drop(state);
        shared.bell.notify_all();
        shared
            .ledger
            .note("after a reset nothing is shared until the engine starts anew");
        if forgotten > 0 {
            shared.ledger.note(&format!(
                "of the entries that a reset made wrong, {forgotten} were written so long ago that their names are \
                 forgotten: empty the store"
            ));
        }
    }
}

impl Drop for Mooncake {
    fn drop(&mut self) {
        self.handle().close();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hybrid_pages::geometry::{Dtype, Group, Layer, Segment};
    use hybrid_pages::ids::{ClassKind, EntryId, PrefixKey, TenantId};
    use hybrid_pages::policy::{EntryKind, Lru, Placement};

    use super::*;
    use crate::reply;
    use crate::state::HelperBatch;

    fn tier() -> Mooncake {
        let segment = Segment::new("d", Dtype::Uint8, vec![64]).unwrap();
        let layer = Layer::new("a", vec![segment]).unwrap();
        let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
        let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap();
        let mut options = MooncakeOptions::new("localhost:1".into(), vec!["/bin/false".into()]);
        options.weighs = false;
        let policy = Box::new(Lru::new(Placement::Every, false));
        let tier = Mooncake::open(options, &geometry, 64, policy).unwrap();
        tier.shared.state_first().ready = true;
        tier
    }

    fn key() -> EntryKey {
        EntryKey {
            namespace: Arc::from(&b"engine"[..]),
            prefix: PrefixKey::new(&[7; 32]).unwrap(),
            block_index: 0,
            class_index: 0,
        }
    }

    /// Nothing is found or taken, and that is said once.
    fn check_closed(tier: &mut Mooncake) {
        let entry = NewEntry {
            id: EntryId(1),
            kind: EntryKind::Page,
            parent: None,
            depth: 1,
            size: 1,
            boundary: 1,
            tenant: TenantId::NONE,
            unused: None,
            proven: true,
        };
        for _ in 0..2 {
            assert_eq!(tier.find(&key()), Found::Absent);
            assert!(!tier.accepts(&entry));
            tier.write(CopyId(1), &key(), &[SlotId(0)], &[7]);
            tier.read(CopyId(2), &key(), &[SlotId(0)]);
            let mut ended = Vec::new();
            tier.poll(&mut ended);
            assert!(ended.iter().all(|end| end.result.is_err()));
            assert!(ended.len() >= 2);
            tier.remove(&key());
            tier.evict(&key());
            tier.forget(&key());
        }
        tier.clear();
        let stats = tier.handle().stats();
        assert_eq!((stats.failed(MooncakeFailure::Panic), stats.out), (1, true));
        assert_eq!(tier.handle().take_notes().len(), 1);
    }

    #[test]
    fn after_a_panic_under_its_lock_nothing_is_found_or_taken() {
        let mut tier = tier();
        let name = name_of(&key());
        tier.shared.state_first().answered(name, Some(vec![7]));
        assert_eq!(tier.find(&key()), Found::Here(vec![7]));
        let shared = Arc::clone(&tier.shared);
        let planted = std::thread::spawn(move || {
            let _state = shared.state_first();
            panic!("planted");
        });
        planted.join().unwrap_err();
        check_closed(&mut tier);
    }

    #[test]
    fn copies_end_whose_answer_is_read_by_a_thread_that_panics() {
        let mut tier = tier();
        let get = Get {
            copy: Some(CopyId(9)),
            name: name_of(&key()),
            class: 5, // There is none.
            slots: vec![SlotId(0)],
            begun: Instant::now(),
            cell: 0,
        };
        let (work, given) = (HelperWork::Get(vec![get]), Instant::now());
        tier.shared
            .state_first()
            .running
            .insert(1, HelperBatch { work, given });
        let mut tile = [0; hybrid_pages::transfer::TILE_BYTES];
        reply::take(&tier.shared, &[7; 32], (1, &[64]), &mut tile);
        let mut ended = Vec::new();
        tier.poll(&mut ended);
        let copies: Vec<_> = ended.iter().map(|end| end.copy).collect();
        assert_eq!(copies, [CopyId(9)]);
        assert!(ended[0].result.is_err() && tier.handle().settle(Duration::from_secs(5)));
        check_closed(&mut tier);
    }
}
