//! A tier whose copies another thread makes, and the slots of a host, which hold words.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use hybrid_pages::cache::CacheConfig;
use hybrid_pages::error::Error;
use hybrid_pages::ids::{EntryKey, PrefixKey, SlotId};
use hybrid_pages::policy::{self, NewEntry};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room, Tier};
use shuttle::thread;

/// What the bytes of an entry are, as a word: those of a time between two resets, under an identity.
pub fn word(epoch: u64, identity: &[u8], key: &PrefixKey, class: usize) -> u64 {
    let hash = blake3::hash(format!("{epoch} {identity:?} {key:?} {class}").as_bytes());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap())
}

/// The host's slots.
pub struct Slots(Vec<AtomicU64>);

impl Slots {
    pub fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicU64::new(0)).collect())
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    pub fn fill(&self, slot: SlotId, word: u64) {
        self.0[slot.0 as usize].store(word, Ordering::SeqCst);
    }

    pub fn expect(&self, slots: &[SlotId], word: u64, what: &str) {
        for slot in slots {
            let found = self.0[slot.0 as usize].load(Ordering::SeqCst);
            assert_eq!(found, word, "{what} has other bytes");
        }
    }
}

/// Identity, key and class of an entry.
pub type Name = (Arc<[u8]>, PrefixKey, usize);

fn name_of(key: &EntryKey) -> Name {
    (Arc::clone(&key.namespace), key.prefix, key.class_index)
}

/// What an earlier process, or another machine, has put there under a name before any reset.
fn of_before(name: &Name) -> (Name, u64) {
    let (identity, key, class) = name;
    (name.clone(), word(0, identity, key, *class))
}

struct Copy {
    id: CopyId,
    name: Name,
    slots: Vec<SlotId>,
    /// What a write is to find in the slots; a read has none.
    word: Option<u64>,
}

#[derive(Default)]
struct State {
    queue: Vec<Copy>,
    /// A copy that is being made, and whether its entry has left meanwhile.
    making: Option<(Name, bool)>,
    ended: Vec<CopyEnd>,
    kept: HashMap<Name, u64>,
    /// What others may add at any time before a reset.
    others: HashMap<Name, u64>,
    closed: bool,
}

/// Copies, which a thread makes in any order.
#[derive(Clone)]
pub struct Copies {
    state: Arc<(Mutex<State>, Condvar)>,
    slots: Arc<Slots>,
}

impl Copies {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    pub fn are_under_way(&self) -> bool {
        let state = self.lock();
        !state.queue.is_empty() || state.making.is_some() || !state.ended.is_empty()
    }

    /// Makes copies until the tier ends.
    pub fn run(&self) {
        loop {
            let mut state = self.lock();
            while state.queue.is_empty() && !state.closed {
                state = self.state.1.wait(state).unwrap();
            }
            if state.closed {
                return;
            }
            let at = super::below(state.queue.len());
            let copy = state.queue.remove(at);
            state.making = Some((copy.name.clone(), false));
            let kept = state.kept.get(&copy.name).copied();
            drop(state);
            let is_damaged = copy.word.is_none() && super::below(16) == 0;
            let read = kept.map(|word| if is_damaged { !word } else { word });
            self.make(copy, read);
        }
    }

    /// `read`: what a read brings, if the tier has the entry.
    fn make(&self, copy: Copy, read: Option<u64>) {
        if let Some(word) = copy.word {
            self.slots
                .expect(&copy.slots, word, "a slot that is written down");
            thread::yield_now();
            self.slots
                .expect(&copy.slots, word, "a slot that is written down");
        } else if let Some(word) = read {
            for &slot in &copy.slots {
                // Nothing touches the slots when the tier has ended.
                if !self.lock().closed {
                    self.slots.fill(slot, word);
                }
            }
        }
        let mut state = self.lock();
        let (name, gone) = state.making.take().unwrap();
        let fails = super::below(12) == 0;
        let result = match (copy.word, read) {
            _ if fails => Err(Error::InvalidArgument("it fails".into())),
            (Some(word), _) => {
                if !gone {
                    state.kept.insert(name, word);
                }
                Ok(vec![word])
            }
            (None, Some(word)) => Ok(vec![word]),
            (None, None) => Err(Error::InvalidArgument("it is gone".into())),
        };
        state.ended.push(CopyEnd {
            copy: copy.id,
            result,
        });
    }
}

/// The tier.
pub struct Threaded {
    room: Room,
    /// Whether it takes only entries that are proven.
    waits: bool,
    /// Whether it answers some questions later.
    asks: bool,
    asks_for_each: bool,
    /// Whether others add to it.
    is_shared: bool,
    /// Whether it keeps the bytes of what it is to evict, and to forget.
    keeps_evicted: bool,
    keeps_forgotten: bool,
    copies: Copies,
}

impl Threaded {
    /// A tier with so many slots, and what makes its copies. An earlier process has left some entries in it, and others
    /// may add some.
    pub fn boxed(
        slots: &Arc<Slots>,
        room: u64,
        config: &CacheConfig,
        left: &[Name],
        others: &[Name],
    ) -> (Box<dyn Below>, Copies) {
        let copies = Copies {
            state: Arc::default(),
            slots: Arc::clone(slots),
        };
        copies.lock().kept.extend(left.iter().map(of_before));
        copies.lock().others.extend(others.iter().map(of_before));
        let policy = policy::by_name(&config.policy, config.shape());
        let tier = Self {
            room: Room::new(room, policy.unwrap()),
            waits: super::below(3) == 0,
            asks: super::below(2) == 0,
            asks_for_each: super::below(2) == 0,
            is_shared: super::below(2) == 0,
            keeps_evicted: super::below(3) == 0,
            keeps_forgotten: super::below(2) == 0,
            copies: copies.clone(),
        };
        (Box::new(tier), copies)
    }

    fn queue(&self, id: CopyId, key: &EntryKey, slots: &[SlotId], word: Option<u64>) {
        self.copies.lock().queue.push(Copy {
            id,
            name: name_of(key),
            slots: slots.to_vec(),
            word,
        });
        self.copies.state.1.notify_one();
    }

    /// Undoes the writes of entries, and drops what the tier has of them unless it `keeps` that.
    fn leave(&self, is_gone: impl Fn(&Name) -> bool, keeps: bool) {
        let mut state = self.copies.lock();
        state.kept.retain(|name, _| keeps || !is_gone(name));
        if let Some((name, gone)) = &mut state.making {
            *gone |= is_gone(name);
        }
        // A write that has not begun is undone; it ends all the same.
        let (undone, left) = std::mem::take(&mut state.queue)
            .into_iter()
            .partition::<Vec<_>, _>(|copy| copy.word.is_some() && is_gone(&copy.name));
        state.queue = left;
        for copy in undone {
            let result = Err(Error::InvalidArgument("it is gone".into()));
            state.ended.push(CopyEnd {
                copy: copy.id,
                result,
            });
        }
    }
}

impl Tier for Threaded {
    fn name(&self) -> &str {
        "threaded"
    }

    fn room(&self) -> &Room {
        &self.room
    }

    fn room_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Below for Threaded {
    fn queue_slots(&self) -> u64 {
        8
    }

    fn waits_for_proof(&self) -> bool {
        self.waits
    }

    fn accepts(&mut self, entry: &NewEntry) -> bool {
        entry.proven || !self.waits
    }

    fn write(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId], checksums: &[u64]) {
        self.queue(copy, key, slots, Some(checksums[0]));
    }

    fn read(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId]) {
        self.queue(copy, key, slots, None);
    }

    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        ended.append(&mut self.copies.lock().ended);
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn asks_for_each(&self) -> bool {
        self.asks_for_each
    }

    fn find(&mut self, key: &EntryKey) -> Found {
        if self.asks && super::below(3) == 0 {
            return Found::Asking;
        }
        let name = name_of(key);
        let mut state = self.copies.lock();
        let adds = self.is_shared && super::below(3) == 0;
        if let Some(word) = state.others.get(&name).copied().filter(|_| adds) {
            state.kept.entry(name.clone()).or_insert(word);
        }
        let kept = state.kept.get(&name);
        kept.map_or(Found::Absent, |&word| Found::Here(vec![word]))
    }

    fn evict(&mut self, key: &EntryKey) {
        let name = name_of(key);
        self.leave(|it| *it == name, self.keeps_evicted);
    }

    fn forget(&mut self, key: &EntryKey) {
        let name = name_of(key);
        self.leave(|it| *it == name, self.keeps_forgotten);
    }

    fn remove(&mut self, key: &EntryKey) {
        let name = name_of(key);
        self.leave(|it| *it == name, false);
    }

    fn clear(&mut self) {
        self.leave(|_| true, false);
        self.copies.lock().others.clear();
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.copies.lock().closed = true;
        self.copies.state.1.notify_all();
    }
}
