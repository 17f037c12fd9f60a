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

/// What the bytes of an entry are, as a word: those of a time between two resets.
pub fn word(epoch: u64, key: &PrefixKey, class: usize) -> u64 {
    let hash = blake3::hash(format!("{epoch} {key:?} {class}").as_bytes());
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap())
}

/// The host's slots.
pub struct Slots(Vec<AtomicU64>);

impl Slots {
    pub fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicU64::new(0)).collect())
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

pub type Name = (PrefixKey, usize);

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
            state.making = Some((copy.name, false));
            let kept = state.kept.get(&copy.name).copied();
            drop(state);
            self.make(copy, kept);
        }
    }

    fn make(&self, copy: Copy, kept: Option<u64>) {
        if let Some(word) = copy.word {
            self.slots
                .expect(&copy.slots, word, "a slot that is written down");
            thread::yield_now();
            self.slots
                .expect(&copy.slots, word, "a slot that is written down");
        } else if let Some(word) = kept {
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
        let result = match (copy.word, kept) {
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
    copies: Copies,
}

impl Threaded {
    /// A tier with so many slots, and what makes its copies. An earlier process has left some entries in it.
    pub fn boxed(
        slots: &Arc<Slots>,
        room: u64,
        config: &CacheConfig,
        left: impl Iterator<Item = Name>,
    ) -> (Box<dyn Below>, Copies) {
        let copies = Copies {
            state: Arc::default(),
            slots: Arc::clone(slots),
        };
        let left = left.map(|(key, class)| ((key, class), word(0, &key, class)));
        copies.lock().kept.extend(left);
        let policy = policy::by_name(&config.policy, config.shape());
        let tier = Self {
            room: Room::new(room, policy.unwrap()),
            waits: super::below(3) == 0,
            copies: copies.clone(),
        };
        (Box::new(tier), copies)
    }

    fn queue(&self, id: CopyId, key: &EntryKey, slots: &[SlotId], word: Option<u64>) {
        self.copies.lock().queue.push(Copy {
            id,
            name: (key.prefix, key.class_index),
            slots: slots.to_vec(),
            word,
        });
        self.copies.state.1.notify_one();
    }

    fn leave(&self, is_gone: impl Fn(&Name) -> bool) {
        let mut state = self.copies.lock();
        state.kept.retain(|name, _| !is_gone(name));
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

    /// A store that is asked: the answer may come later.
    fn find(&mut self, key: &EntryKey) -> Found {
        if super::below(3) == 0 {
            return Found::Asking;
        }
        let kept = self
            .copies
            .lock()
            .kept
            .get(&(key.prefix, key.class_index))
            .copied();
        kept.map_or(Found::Absent, |word| Found::Here(vec![word]))
    }

    fn remove(&mut self, key: &EntryKey) {
        let name = (key.prefix, key.class_index);
        self.leave(|it| *it == name);
    }

    fn clear(&mut self) {
        self.leave(|_| true);
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.copies.lock().closed = true;
        self.copies.state.1.notify_all();
    }
}
