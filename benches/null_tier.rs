//! A tier without bytes, whose copies end with the next poll: for benches of the cache.

use std::sync::atomic::{AtomicBool, Ordering};

use hybrid_pages::error::Error;
use hybrid_pages::ids::{EntryKey, SlotId};
use hybrid_pages::policy::NewEntry;
use hybrid_pages::tier::{Below, CopyEnd, CopyId, Found, Room, Tier};

/// What is below the host.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Host,
    Disk,
    Waits,
    Asks,
}

/// The next page of a first block is not written.
pub static FAILS: AtomicBool = AtomicBool::new(false);

/// A tier that behaves as one of a kind.
pub struct Null {
    room: Room,
    kind: Kind,
    ended: Vec<CopyEnd>,
}

impl Null {
    pub fn boxed(room: Room, kind: Kind) -> Box<dyn Below> {
        let ended = Vec::new();
        Box::new(Self { room, kind, ended })
    }

    fn end(&mut self, copy: CopyId) {
        let result = Ok(vec![7]);
        self.ended.push(CopyEnd { copy, result });
    }
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
        self.kind == Kind::Waits
    }
    fn accepts(&mut self, entry: &NewEntry) -> bool {
        self.kind != Kind::Waits || entry.proven
    }
    fn write(&mut self, copy: CopyId, key: &EntryKey, _: &[SlotId], _: &[u64]) {
        let is_first = (key.class_index, key.block_index) == (0, 0);
        if is_first && FAILS.swap(false, Ordering::Relaxed) {
            let result = Err(Error::transfer("it is full"));
            self.ended.push(CopyEnd { copy, result });
        } else {
            self.end(copy);
        }
    }
    fn read(&mut self, copy: CopyId, _: &EntryKey, _: &[SlotId]) {
        self.end(copy);
    }
    fn poll(&mut self, ended: &mut Vec<CopyEnd>) {
        ended.append(&mut self.ended);
    }
    fn find(&mut self, key: &EntryKey) -> Found {
        std::hint::black_box(blake3::hash(key.prefix.as_bytes()));
        match self.kind {
            Kind::Asks => Found::Asking,
            _ => Found::Absent,
        }
    }
    fn remove(&mut self, _: &EntryKey) {}
    fn clear(&mut self) {}
}
