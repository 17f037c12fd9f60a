//! A tier below without bytes, whose copies end with the next poll, and that counts what it is asked and told.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};

use hybrid_pages::ids::{EntryId, EntryKey, SlotId, TenantId};
use hybrid_pages::policy::{self, EntryKind, EntrySizes, Hints, NewEntry, NewRequest, Policy};
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room, Tier};

/// What a test says of a tier, and learns of it.
#[derive(Default)]
pub struct Seen {
    pub declines: Vec<EntryKind>,
    pub waits_for_proof: bool,
    pub is_shared: bool,
    pub asks: bool,
    pub is_out: bool,
    pub queue: Option<u64>,
    pub finds: usize,
    pub offers: usize,
    /// Calls of its policy that cost with what is held.
    pub turns: usize,
    /// Reads since the last poll, and the most that ever were.
    pub reads: usize,
    pub most_reads: usize,
    /// Tells another thread when so many more entries were held or read.
    pub signal: Option<(usize, Sender<()>)>,
    /// What was written, evicted and removed since it was last cleared: blocks with their classes.
    pub log: Vec<(&'static str, EntryKey)>,
}

impl Seen {
    fn count(&mut self) {
        let Some((left, sender)) = &mut self.signal else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            sender.send(()).unwrap();
            self.signal = None;
            // The other thread most often waits for the cache's lock when this ends.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[derive(Clone, Default)]
pub struct Handle(Arc<Mutex<Seen>>);

impl Handle {
    pub fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }
}

pub struct Plain {
    room: Room,
    seen: Handle,
    ended: Vec<CopyEnd>,
}

impl Plain {
    /// `protects`: whether its policy says that it protects prefixes.
    pub fn boxed(
        seen: &Handle,
        slots: u64,
        policy: &str,
        shape: EntrySizes,
        protects: bool,
    ) -> Box<dyn Below> {
        let policy = Watched {
            policy: policy::by_name(policy, shape).unwrap(),
            seen: seen.clone(),
            protects,
        };
        Box::new(Self {
            room: Room::new(slots, Box::new(policy)),
            seen: seen.clone(),
            ended: vec![],
        })
    }

    fn end(&mut self, copy: CopyId) {
        let result = Ok(vec![7]);
        self.ended.push(CopyEnd { copy, result });
    }
}

impl Tier for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn room(&self) -> &Room {
        &self.room
    }

    fn room_mut(&mut self) -> &mut Room {
        &mut self.room
    }
}

impl Below for Plain {
    fn queue_slots(&self) -> u64 {
        self.seen.lock().queue.unwrap_or(u64::MAX / 2)
    }

    fn waits_for_proof(&self) -> bool {
        self.seen.lock().waits_for_proof
    }

    fn is_shared(&self) -> bool {
        self.seen.lock().is_shared
    }

    fn accepts(&mut self, entry: &NewEntry) -> bool {
        let mut seen = self.seen.lock();
        seen.offers += 1;
        let proven = entry.proven || !seen.waits_for_proof;
        proven && !seen.is_out && !seen.declines.contains(&entry.kind)
    }

    fn write(&mut self, copy: CopyId, key: &EntryKey, _: &[SlotId], _: &[u64]) {
        self.seen.lock().log.push(("write", key.clone()));
        self.end(copy);
    }

    fn read(&mut self, copy: CopyId, _: &EntryKey, _: &[SlotId]) {
        let mut seen = self.seen.lock();
        seen.reads += 1;
        seen.most_reads = seen.most_reads.max(seen.reads);
        seen.count();
        drop(seen);
        self.end(copy);
    }

    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        self.seen.lock().reads = 0;
        ended.append(&mut self.ended);
    }

    fn find(&mut self, _: &EntryKey) -> Found {
        let mut seen = self.seen.lock();
        seen.finds += 1;
        if seen.asks {
            Found::Asking
        } else {
            Found::Absent
        }
    }

    fn evict(&mut self, key: &EntryKey) {
        self.seen.lock().log.push(("evict", key.clone()));
    }

    fn remove(&mut self, key: &EntryKey) {
        self.seen.lock().log.push(("remove", key.clone()));
    }

    fn clear(&mut self) {
        self.seen.lock().log.clear();
    }
}

/// A policy whose calls are counted, and that may hide that it protects prefixes: then all of one is held.
struct Watched {
    policy: Box<dyn Policy>,
    seen: Handle,
    protects: bool,
}

impl Policy for Watched {
    fn admit(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        self.policy.admit(request, admitted);
    }

    fn finish(&mut self, boundaries: &[u64], end: usize, output_tokens: u64) {
        self.policy.finish(boundaries, end, output_tokens);
    }

    fn wants(&mut self, entry: &NewEntry) -> bool {
        self.policy.wants(entry)
    }

    fn enter(&mut self, entry: &NewEntry) {
        self.policy.enter(entry);
    }

    fn keep(&mut self, id: EntryId, tenant: TenantId, hints: &Hints) {
        self.policy.keep(id, tenant, hints);
    }

    fn release(&mut self, id: EntryId) {
        self.seen.lock().turns += 1;
        self.policy.release(id);
    }

    fn hold(&mut self, id: EntryId) {
        let mut seen = self.seen.lock();
        seen.turns += 1;
        seen.count();
        drop(seen);
        self.policy.hold(id);
    }

    fn protects(&self, page: EntryId) -> bool {
        self.protects && self.policy.protects(page)
    }

    fn is_stood_on(&self, id: EntryId) -> bool {
        self.policy.is_stood_on(id)
    }

    fn leave(&mut self, id: EntryId) {
        self.policy.leave(id);
    }

    fn victim(&mut self) -> Option<EntryId> {
        self.policy.victim()
    }

    fn victim_of(&mut self, tenant: TenantId) -> Option<EntryId> {
        self.policy.victim_of(tenant)
    }

    fn bytes(&self) -> usize {
        self.policy.bytes()
    }
}

pub const SHAPE: EntrySizes = EntrySizes {
    page: 1,
    window: 1,
    checkpoint: 3,
};
