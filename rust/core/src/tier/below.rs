//! Tiers below the host: beyond having room, they move bytes.

use std::time::Duration;

use super::Tier;
use crate::error::Result;
use crate::ids::{EntryKey, SlotId};
use crate::policy::NewEntry;

/// The name of a copy until its end was reported; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyId(pub u64);

/// The end of a copy.
#[derive(Debug)]
pub struct CopyEnd {
    /// The copy that ended: nothing touches its slots any more.
    pub copy: CopyId,
    /// For a read: the checksums of the bytes that are in the slots now, one per rank. The bytes are published only if
    /// the cache knows the same checksums. For a write: any value. An error says why the copy failed.
    pub result: Result<Vec<u64>>,
}

/// The answer of a tier that is asked for an entry which this cache has not put there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The entry is there, with these checksums, one per rank.
    Here(Vec<u64>),
    /// The entry is not there, as far as the tier knows.
    Absent,
    /// The tier asks somebody: a later lookup will know. If the entry is a page, or if there are no pages, the cache
    /// then asks about the rest of the prompt, so that the tier can put all questions in one. Those answers count
    /// later.
    Asking,
}

/// A tier whose bytes are copied from and to the host's slots, which it was given when it was made.
///
/// The cache calls it under its lock, so no method waits: copies are started, and their ends are
/// polled for. Every copy that was started ends once, whatever happened to it; its slots stay as they
/// are until then. Calls count in the order in which they are made: a [`remove`](Self::remove) or
/// [`clear`](Self::clear) also undoes the writes before it that have not ended. Dropping the
/// tier ends its copies: nothing touches the slots afterwards.
///
/// An entry enters the room right before it is written, or right after it was found, if room could be made.
///
/// A request waits for a read as long as the read takes, so a tier whose reads may hang needs a time limit
/// of its own. Nothing waits for writes.
pub trait Below: Tier {
    /// How many slots of the host the writes to this tier may read at a time. Entries offered beyond that are declined.
    /// The prefixes that the entries extend are kept from eviction, too, and don't count.
    fn queue_slots(&self) -> u64;

    /// Whether the tier may decline an entry that is not [proven](NewEntry::proven) yet. A proven one is offered again.
    fn waits_for_proof(&self) -> bool {
        false
    }

    /// Whether others may put entries into the tier at any time, also at boundaries whose page is known.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether the tier asks others about each entry by its name, so that the cache should ask it about the rest of a
    /// prompt, too. False if one question of the tier brings the answers for all entries.
    fn asks_for_each(&self) -> bool {
        true
    }

    /// Whether an entry that is offered is wanted. There may be no room for it yet.
    fn accepts(&mut self, entry: &NewEntry) -> bool {
        let _ = entry;
        true
    }

    /// Starts to copy an entry from the host. `checksums` are to be kept with the bytes, one per rank.
    fn write(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId], checksums: &[u64]);

    /// Starts to copy an entry into slots of the host.
    fn read(&mut self, copy: CopyId, key: &EntryKey, slots: &[SlotId]);

    /// Adds the copies that ended since the last call.
    fn poll(&mut self, ended: &mut Vec<CopyEnd>);

    /// Looks for an entry that this cache has not put there since it was made: one from before a restart, or another
    /// machine's. The other entries of a boundary are asked for once, right after its page was found: a tier that
    /// nobody else writes to must know of them by then. A tier that asks others ends that within a time limit of its
    /// own.
    fn find(&mut self, key: &EntryKey) -> Found;

    /// Whether a [`find`](Self::find) of the page of a tail is worth its time. `None` if the tier asks somebody: a
    /// later call tells. The entry does not count as found.
    fn may_have(&mut self, key: &EntryKey) -> Option<bool> {
        let _ = key;
        Some(true)
    }

    /// Adds the numbers of tokens of the tails that the tier has in a namespace under keys with this
    /// [`stem`](crate::ids::PrefixKey::stem): in any order, and some maybe twice. Returns whether the tier asks
    /// somebody: a later call adds more.
    fn tail_lengths(&mut self, namespace: &[u8], stem: u64, lengths: &mut Vec<u32>) -> bool {
        let _ = (namespace, stem, lengths);
        false
    }

    /// How long it would take to read so many entries of so many bytes together. `None` where computing is never
    /// faster, so that reading is not weighed against it.
    fn expects(&self, entries: u64, bytes: u64) -> Option<Duration> {
        let _ = (entries, bytes);
        None
    }

    /// How many bytes reads that begin together would bring before the tier gives them up. `None` if it does not
    /// know, or gives up none.
    fn in_time(&self) -> Option<u64> {
        None
    }

    /// The entry leaves to make room for others. A tier that others share keeps the bytes.
    fn evict(&mut self, key: &EntryKey) {
        self.remove(key);
    }

    /// The entry is gone: nobody may find or read these bytes again.
    fn remove(&mut self, key: &EntryKey);

    /// The cache no longer counts on the entry, though its bytes may be good: a read that failed says nothing of
    /// what hangs from its page. The tier may keep it in room that it needs for nothing else, for a later
    /// [`find`](Self::find). An entry whose read has failed must not be found before the tier has reason to
    /// expect that it can be read.
    fn forget(&mut self, key: &EntryKey) {
        self.remove(key);
    }

    /// Everything is gone, also what this cache has not put there: the engine would now compute other bytes under the
    /// same keys. Nobody may find or read the old ones again, even after a restart.
    fn clear(&mut self);
}
